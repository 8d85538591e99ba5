"""Make one parquet file of a user's table of any format, to read it again by rows."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.loading import UserTable
from ramen_ray.data.tables.reading.table_file import TableFile

MADE_OF = "ramen_ray.made_of"  # key of the file's metadata: the identity of the table


def identity_of(files: Sequence[TableFile]) -> str:
    """Hash the files' places, encodings, sizes, times and content."""
    facts = [
        [file.path, file.encoding, file.info.size, file.info.mtime_ns, file.digest()]
        for file in files
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def as_parquet(
    source: str, files: Sequence[TableFile], encoding: str, target: Path, aside: Path
) -> str:
    """Make ``target`` of the rows of ``source``, unless it was made of the same; returns of what.

    It has all columns of the ``files``, as texts; what shows nothing is null. ``aside`` is a folder
    for what is not whole. Raises a DatasetError that names the rows that cannot be read.
    """
    identity = identity_of(files)
    if target.exists() and pq.read_metadata(target).metadata[MADE_OF.encode()].decode() == identity:
        return identity
    names = list(dict.fromkeys(name for file in files for name in file.header))
    columns = {str(place): Column(name, optional=True) for place, name in enumerate(names)}
    table = UserTable(source, columns, encoding=encoding)
    schema = pa.schema([(name, pa.string()) for name in names])
    with (
        whole_file(target, aside) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for rows in table.batches():
            writer.write_table(pa.Table.from_arrays(rows.columns[1:], schema=schema))
        writer.add_key_value_metadata({MADE_OF: identity})
        table.check()
    return identity
