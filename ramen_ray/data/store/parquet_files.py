"""Parquet from anyone: opened only if reading it runs no code; read and written in bounded memory.

A file can ask for an Arrow extension type whose values are programs: Ray registers
``ray.data.arrow_pickled_object``, which unpickles each cell that is looked at.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
MAX_LISTED = 1 << 27
"""Entries that the lists of one row group may have: one row may have all of them."""
BYTES_PER_READ = 1 << 16
ROWS_PER_GROUP = 1 << 20  # rows of a parquet row group
BYTES_PER_GROUP = 1 << 30  # an Arrow array cannot have more than 2 GiB of texts


class BoundedFile(pq.ParquetFile):
    """A parquet file whose batches have fewer rows where texts or lists are long."""

    def __init__(self, source: Any, **options: Any) -> None:
        options["page_checksum_verification"] = True
        # for its dictionaries, a file is opened once more
        self._open = partial(pq.ParquetFile, source, buffer_size=BYTES_PER_READ, **options)
        super().__init__(source, **options)

    def iter_batches(
        self,
        batch_size: int = 65_536,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most ``batch_size`` rows, fewer if they take BYTES_PER_BATCH."""
        groups = range(self.num_row_groups) if row_groups is None else row_groups
        longest = max((self._longest(group, columns, batch_size) for group in groups), default=1)
        rows = min(batch_size, max(BYTES_PER_BATCH // longest, 1))
        return super().iter_batches(rows, row_groups, columns, **options)

    def _longest(self, group: int, columns: Sequence[str] | None, rows: int) -> int:
        """Return the bytes of the longest cell, or the mean, if ``rows`` may take too many."""
        of_group = self.metadata.row_group(group)
        rows = min(rows, of_group.num_rows)
        large = [
            column
            for column in map(of_group.column, range(of_group.num_columns))
            if (columns is None or _is_in(column.path_in_schema, columns))
            and _num_bytes(column) * rows > BYTES_PER_BATCH
        ]
        longest = [1, *(_num_bytes(column) // of_group.num_rows for column in large)]
        coded = [column for column in large if column.has_dictionary_page]
        if coded:  # a dictionary has a text once, for a million rows
            names = [column.path_in_schema for column in coded]
            with self._open(read_dictionary=names) as again:
                first = next(again.iter_batches(1, [group], names))
            texts = chain.from_iterable(map(_dictionaries, first.columns))
            of_row = max(-(-column.num_values // of_group.num_rows) for column in coded)
            longest += [(pc.max(pc.binary_length(one)).as_py() or 0) * of_row for one in texts]
        return max(longest)


def open_parquet(
    file: str | Path, filesystem: FileSystem | None = None, opened: pa.NativeFile | None = None
) -> BoundedFile:
    """Open a parquet file, or one that is ``opened`` already; the caller closes it.

    Raises a DatasetError if it cannot be read, its lists are too long, or a column's extension type
    may run code.
    """
    try:
        parquet = BoundedFile(opened or file, filesystem=filesystem)
    except Exception as error:  # code of other libraries reads the parameters of their types
        raise DatasetError(f"{file} cannot be read as parquet: {first_line_of(error)}") from error
    if refused := refused_columns(parquet.schema_arrow):
        parquet.close()
        columns = ", ".join(f"{name!r} ({kind})" for name, kind in refused.items())
        raise DatasetError(
            f"{file}: columns of extension types may run code, and are refused: {columns}; leave "
            f"them out, or write them as plain values"
        )
    if too_long := overlong_lists(parquet.metadata):
        parquet.close()
        raise DatasetError(f"{file}: {too_long}")
    return parquet


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
            waiting, num_waiting = [rows[ROWS_PER_GROUP:]], num_waiting - ROWS_PER_GROUP
    if num_waiting:
        yield from _of_one_chunk(pa.concat_tables(waiting))


def _of_one_chunk(rows: pa.Table) -> Iterator[pa.Table]:
    """Halve rows until an array can hold each half's texts."""
    if rows.nbytes <= BYTES_PER_GROUP or len(rows) == 1:
        yield rows.combine_chunks()
        return
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        yield from _of_one_chunk(half)


def read_footer(file: Path) -> pq.FileMetaData:
    """Return what a parquet file's footer says of its rows; see :func:`open_parquet`."""
    with open_parquet(file) as parquet:
        return parquet.metadata


def overlong_lists(footer: pq.FileMetaData) -> str:
    """Return what is wrong with a file that would take gigabytes for a row; "" if nothing is."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            if column.num_values > max(group.num_rows, MAX_LISTED):
                return (
                    f"the lists of column {column.path_in_schema!r} have {column.num_values}"
                    f" entries in one row group, over {MAX_LISTED}; write fewer rows in each"
                )
    return ""


def refused_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the extension types that may run code, by dotted name of the column."""
    return {name: kind for name, kind in _extensions(schema) if kind not in PLAIN_TYPES}


def _is_in(path: str, columns: Collection[str]) -> bool:
    """Return whether a column of the file belongs to one of ``columns``, whose names have dots."""
    return any(f"{path}.".startswith(f"{name}.") for name in columns)


def _dictionaries(cells: pa.Array) -> Iterator[pa.Array]:
    """Yield the dictionaries of texts, also of those in lists and structs."""
    if pa.types.is_dictionary(cells.type):
        yield cells.dictionary
    elif pa.types.is_struct(cells.type):
        yield from chain.from_iterable(map(_dictionaries, cells.flatten()))
    elif hasattr(cells, "values"):
        yield from _dictionaries(cells.values)


def _num_bytes(column: pq.ColumnChunkMetaData) -> int:
    """Return how many bytes a column takes at least; a run of equal numbers takes few on disk."""
    return max(column.total_uncompressed_size, 8 * column.num_values)


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
