"""Parquet from anyone: opened only if reading it runs no code, and read in bounded memory.

A library can register an Arrow extension type whose values are programs: Ray's
``ray.data.arrow_pickled_object`` unpickles each cell that is looked at. Arrow gives a column such a
type if the file asks for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
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
BYTES_PER_READ = 1 << 16


class BoundedFile(pq.ParquetFile):
    """A parquet file whose batches have fewer rows where texts are long.

    Else a small file could take all memory: its dictionary has a text once, for a million rows.
    """

    def __init__(self, source: Any, **options: Any) -> None:
        """Open a file as ``pq.ParquetFile`` does; ``source`` is read twice."""
        self._open = partial(pq.ParquetFile, source, buffer_size=BYTES_PER_READ, **options)
        super().__init__(source, **options)

    def iter_batches(
        self,
        batch_size: int = 65_536,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most ``batch_size`` rows, fewer if texts take BYTES_PER_BATCH."""
        groups = range(self.num_row_groups) if row_groups is None else row_groups
        longest = max((self._longest(group, columns, batch_size) for group in groups), default=1)
        rows = min(batch_size, max(BYTES_PER_BATCH // longest, 1))
        return super().iter_batches(rows, row_groups, columns, **options)

    def _longest(self, group: int, columns: Sequence[str] | None, rows: int) -> int:
        """Return the bytes of the longest text, or the mean, if ``rows`` may take too many."""
        of_group = self.metadata.row_group(group)
        rows = min(rows, of_group.num_rows)
        all_columns = map(of_group.column, range(of_group.num_columns))
        large = [
            column
            for column in all_columns
            if (columns is None or column.path_in_schema in columns)
            and column.total_uncompressed_size * rows > BYTES_PER_BATCH
        ]
        longest = [1, *(column.total_uncompressed_size // of_group.num_rows for column in large)]
        names = [column.path_in_schema for column in large if column.has_dictionary_page]
        if names:
            with self._open(read_dictionary=names) as again:
                first = next(again.iter_batches(1, [group], names))
            texts = [one.dictionary for one in first.columns if pa.types.is_dictionary(one.type)]
            longest += [pc.max(pc.binary_length(one)).as_py() or 0 for one in texts]
        return max(longest)


def open_parquet(
    file: str | Path, filesystem: FileSystem | None = None, opened: pa.NativeFile | None = None
) -> BoundedFile:
    """Open a parquet file, or one that is ``opened`` already; the caller closes it.

    Raises a DatasetError if it cannot be read, or a column's extension type may run code.
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
    return parquet


def read_footer(file: Path) -> pq.FileMetaData:
    """Return what a parquet file's footer says of its rows; see :func:`open_parquet`."""
    with open_parquet(file) as parquet:
        return parquet.metadata


def refused_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the extension types that may run code, by dotted name of the column."""
    return {name: kind for name, kind in _extensions(schema) if kind not in PLAIN_TYPES}


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
