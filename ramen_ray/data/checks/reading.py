"""A dataset's parquet files as a stream of batches that know their file and row numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.findings import Finding
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.store.texts import not_utf8

ROWS_PER_BATCH = 65_536
READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, DatasetError)


@dataclass(frozen=True)
class RowBatch:
    """Rows of a file, relative to the dataset directory, from its row ``first_row`` (0..) on."""

    file: Path
    first_row: int
    rows: pa.RecordBatch

    @cached_property
    def not_utf8(self) -> dict[str, Booleans]:
        """By column of texts: flags (n,) those whose bytes are not UTF-8, as parquet may have."""
        fields = filter(lambda field: pa.types.is_string(field.type), self.rows.schema)
        return {field.name: not_utf8(self.rows[field.name]) for field in fields}

    def texts(self, column: str) -> pa.Array:
        """Return texts (n,) with null in place of those whose bytes are not UTF-8."""
        broken = self.not_utf8[column]
        if not broken.any():
            return self.rows[column]
        return pc.if_else(pa.array(broken), pa.scalar(None, pa.string()), self.rows[column])


def read_batches(dataset: Dataset, table: str, damage: list[Finding]) -> Iterator[RowBatch]:
    """Stream the columns of a table that the format defines, file by file.

    A file that is not parquet, or damaged, ends it, and is added to ``damage``.
    """
    columns = dataset.schema(table).names
    for path in dataset.files(table):
        file = path.relative_to(dataset.path)
        row = 0
        try:
            with open_parquet(path) as parquet:
                for rows in parquet.iter_batches(ROWS_PER_BATCH, columns=columns):
                    yield RowBatch(file, row, rows.select(columns))
                    row += len(rows)
                expected = parquet.metadata.num_rows
            if row != expected:
                raise DatasetError("its number of rows differs from its footer")
        except READ_ERRORS as error:  # the engine would change it
            damage.append(unreadable(file, error))
            return


def unreadable(file: str | Path, why: object) -> Finding:
    """Return the finding that ``file`` cannot be read."""
    return Finding(
        "error",
        str(file),
        f"not a readable parquet file: {' '.join(str(why).split())}",
        "it is damaged or incomplete; copy or write it again",
    )


def positions(flags: Any) -> Int64s:
    """Return where ``flags`` (n,), a mask of Arrow or numpy, is true; null is false."""
    if isinstance(flags, pa.Array):
        flags = pc.fill_null(flags, False)
    return np.flatnonzero(np.asarray(flags))
