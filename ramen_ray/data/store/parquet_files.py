"""Parquet from anyone: opened only if reading it runs no code; read and written in bounded memory.

A file can ask for an Arrow extension type whose values are programs: Ray registers
``ray.data.arrow_pickled_object``, which unpickles each cell that is looked at.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ramen_ray.errors import DatasetError, first_line_of

NAME_KEY = b"ARROW:extension:name"
"""In a field's metadata: its extension type, if no library has registered it in this process."""
PLAIN_TYPES = {
    *(f"arrow.{name}" for name in ("bool8", "fixed_shape_tensor", "json", "opaque")),
    *(f"arrow.{name}" for name in ("timestamp_with_offset", "uuid", "variable_shape_tensor")),
    *("pandas.interval", "pandas.period"),
}
"""Extension types that are data and nothing else."""
BYTES_PER_BATCH = 1 << 27
ROWS_AT_ONCE = 1024
"""Rows that are read before it is known what they take."""
MAX_VALUES = 1 << 27
"""Values that a column of one row group may have: one row may list all of them."""
MIN_EXPANDED = 1 << 30
MAX_EXPANSION = 100
"""How many times its size on disk a table may take in memory, from MIN_EXPANDED bytes on."""
ROWS_PER_GROUP = 1 << 20  # rows of a parquet row group
BYTES_PER_GROUP = 1 << 30  # an Arrow array cannot have more than 2 GiB of texts


class BoundedFile(pq.ParquetFile):
    """A parquet file whose batches have fewer rows where texts or lists are long."""

    def iter_batches(
        self,
        batch_size: int = 65_536,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most ``batch_size`` rows, fewer if more take BYTES_PER_BATCH."""
        few = min(batch_size, ROWS_AT_ONCE)
        waiting: list[pa.RecordBatch] = []
        num_rows = num_bytes = 0
        for rows in super().iter_batches(few, row_groups, columns, **options):
            num_rows += len(rows)
            num_bytes += rows.nbytes
            if waiting and (num_rows > batch_size or num_bytes > BYTES_PER_BATCH):
                yield pa.concat_batches(waiting)
                waiting = []
                num_rows = len(rows)
                num_bytes = rows.nbytes
            waiting.append(rows)
        if waiting:
            yield pa.concat_batches(waiting)


def open_parquet(file: str | Path, filesystem: FileSystem | None = None) -> BoundedFile:
    """Open a parquet file; the caller closes it.

    Raises a DatasetError if it cannot be read, a row group has too many values, or a column's
    extension type may run code.
    """
    try:
        parquet = BoundedFile(file, filesystem=filesystem, page_checksum_verification=True)
    except Exception as error:  # code of other libraries reads the parameters of their types
        reason = first_line_of(error)
        raise DatasetError(f"{file}: not a readable parquet file: {reason}") from error
    extensions = _extensions(parquet.schema_arrow)
    if refused := {name: kind for name, kind in extensions if kind not in PLAIN_TYPES}:
        parquet.close()
        columns = ", ".join(f"{name!r} ({kind})" for name, kind in refused.items())
        raise DatasetError(
            f"{file}: columns of extension types may run code, and are refused: {columns}; leave "
            f"them out, or write them as plain values"
        )
    if crowded := _crowded_columns(parquet.metadata):
        parquet.close()
        raise DatasetError(
            f"{file}: column {crowded[0]!r} has over {MAX_VALUES} values in one row group; write"
            " fewer rows in each"
        )
    return parquet


def rows_of(file: Path, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
    """Stream a table's file; raises a DatasetError where it takes far more than on disk."""
    num_bytes = 0
    most = max(MIN_EXPANDED, MAX_EXPANSION * file.stat().st_size)
    with open_parquet(file) as parquet:
        for batch in parquet.iter_batches(batch_size, columns=columns):
            num_bytes += batch.nbytes
            if num_bytes > most:
                raise DatasetError(
                    f"{file} takes over {most / 1e9:.3g} GB in memory, a hundred times what it"
                    " takes on disk, as no table of ids and texts does"
                )
            yield batch.select(columns)


def row_groups(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Regroup a stream of rows into groups of one chunk, cut where only the rows decide."""
    waiting: list[pa.Table] = []
    num_waiting = 0
    for batch in batches:
        waiting.append(batch)
        num_waiting += len(batch)
        while num_waiting >= ROWS_PER_GROUP:
            rows = pa.concat_tables(waiting)
            yield from _of_one_chunk(rows[:ROWS_PER_GROUP])
            waiting = [rows[ROWS_PER_GROUP:]]
            num_waiting -= ROWS_PER_GROUP
    if num_waiting:
        yield from _of_one_chunk(pa.concat_tables(waiting))


def _of_one_chunk(rows: pa.Table) -> Iterator[pa.Table]:
    """Halve rows until an array can hold each half's texts."""
    if rows.nbytes <= BYTES_PER_GROUP or len(rows) == 1:
        yield rows.combine_chunks()
        return
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        yield from _of_one_chunk(half)


def sorted_rows(rows: pa.Table, column: str) -> Iterator[pa.RecordBatch]:
    """Yield rows in the order of a column; an array may not hold the bytes of all their texts."""
    as_large = {pa.string(): pa.large_string(), pa.list_(pa.int64()): pa.large_list(pa.int64())}
    large = pa.schema([cell.with_type(as_large.get(cell.type, cell.type)) for cell in rows.schema])
    for batch in rows.cast(large).sort_by(column).to_batches(65_536):
        yield batch.cast(rows.schema)


def read_footer(file: Path) -> pq.FileMetaData:
    """Return what a parquet file's footer says of its rows; see :func:`open_parquet`."""
    with open_parquet(file) as parquet:
        return parquet.metadata


def _crowded_columns(footer: pq.FileMetaData) -> list[str]:
    """Return the columns that could take gigabytes for a row, such as one that lists a billion."""
    groups = map(footer.row_group, range(footer.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    return [column.path_in_schema for column in columns if column.num_values > MAX_VALUES]


def _extensions(fields: Iterable[pa.Field], within: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name of the column, extension type) of all fields, nested ones too."""
    for field in fields:
        name = f"{within}{field.name}"
        if NAME_KEY in (field.metadata or {}):
            yield name, field.metadata[NAME_KEY].decode(errors="replace")
        kind = field.type
        if isinstance(kind, pa.BaseExtensionType):
            yield name, kind.extension_name
            yield from _extensions([pa.field(name, kind.storage_type)])
        if isinstance(kind, pa.DictionaryType):
            yield from _extensions([pa.field(name, kind.value_type)])
        yield from _extensions((kind.field(i) for i in range(kind.num_fields)), f"{name}.")
