"""Stream a table into the engine, and note what the engine cannot see."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.findings import Finding, Kind, Tallies
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.parquet_files import read_footer
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.store.texts import not_utf8

ROWS_PER_BATCH = 65_536
READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, DatasetError)


def keys_of(table: str) -> list[str]:
    """Name the columns that no two rows of ``table`` share: an id, or both of a pair."""
    names: list[str] = schema_of(table).names
    return names[: 1 + table.startswith(("edges/", "filters/"))]


def unreadable(file: str | Path, why: object) -> Finding:
    """Return the finding that ``file`` cannot be read."""
    return Finding(
        "error",
        str(file),
        f"not a readable parquet file: {' '.join(str(why).split())}",
        "it is damaged or incomplete; copy or write it again",
    )


class TableReader:
    """A table's rows as a stream; what it has noted is whole when they have been read.

    Attributes:
        schema: The columns that the table has.
        damage: The file that cannot be read, which ends the rows.
        not_utf8: Texts whose bytes are not UTF-8. The rows have them read as Latin-1.
        ascends: Whether ids, or pairs of ids, ascend, so that none repeats; False if one is null.
    """

    def __init__(self, dataset: Dataset, table: str) -> None:
        """Read nothing yet but the schema."""
        self.schema = dataset.schema(table)
        self.damage: list[Finding] = []
        self.not_utf8 = Tallies()
        self.ascends = True
        self._dataset = dataset
        self._table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in the order of the files."""
        keys, last = keys_of(self._table), None
        for path in self._dataset.files(self._table):
            file, num_rows = path.relative_to(self._dataset.path), 0
            try:
                for rows in self._dataset.rows_of(path, self.schema.names, ROWS_PER_BATCH):
                    yield self._readable(rows, file, num_rows)
                    num_rows += len(rows)
                    ids = np.stack([rows[key].to_numpy(zero_copy_only=False) for key in keys])
                    last = ids if last is None else np.append(last[:, -1:], ids, axis=1)
                    self.ascends &= _ascend(*last)
                if num_rows != read_footer(path).num_rows:
                    raise DatasetError("its number of rows differs from its footer")
            except READ_ERRORS as error:  # the engine would change it
                self.damage.append(unreadable(file, error))
                return

    def _readable(self, rows: pa.RecordBatch, file: Path, first: int) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            column = rows[field.name]
            if pa.types.is_string(field.type) and (odd := not_utf8(column)).any():
                contents = column.cast(pa.binary()).filter(odd).to_pylist()
                kind = Kind("bytes that are not UTF-8", "convert the source", field.name)
                self.not_utf8.add(kind, file, first + np.flatnonzero(odd), contents)
                # the engine cannot hold them, and null would be another fault
                texts = pa.array([content.decode("latin-1") for content in contents])
                column = pc.replace_with_mask(column, odd, texts)
            columns.append(column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _ascend(first: np.ndarray, second: np.ndarray | None = None) -> bool:
    """Say whether ids (n,), or pairs of ids, ascend; NaN is above and below nothing."""
    rises = first[1:] > first[:-1]
    if second is not None:
        rises |= (first[1:] == first[:-1]) & (second[1:] > second[:-1])
    return bool(rises.all())
