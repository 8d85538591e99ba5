"""Parquet from anyone: opened only if reading it runs no code.

A library can register an Arrow extension type whose values are programs: Ray's
``ray.data.arrow_pickled_object`` unpickles each cell that is looked at. Arrow gives a column such a
type if the file asks for it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

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


def open_parquet(
    file: str | Path, filesystem: FileSystem | None = None, opened: pa.NativeFile | None = None
) -> pq.ParquetFile:
    """Open a parquet file, or one that is ``opened`` already; the caller closes it.

    Raises a DatasetError if it cannot be read, or a column's extension type may run code.
    """
    try:
        parquet = pq.ParquetFile(opened or file, filesystem=filesystem)
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
