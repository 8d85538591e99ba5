"""A dataset's parquet files as a stream of batches that know their file and row numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray.data.findings import Finding
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.utf8 import is_utf8

ROWS_PER_BATCH = 16_384
READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


class UnreadableFileError(DatasetError):
    """A parquet file of a dataset directory is damaged; ``finding`` says which."""

    finding: Finding

    @classmethod
    def from_finding(cls, dataset: Dataset, finding: Finding) -> "UnreadableFileError":
        """Build the error with the file's full path, as nothing else in the message names it."""
        error = cls(f"{dataset.path}/{finding}")  # one argument, or Ray cannot unpickle it
        error.finding = finding
        return error


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a file.

    Attributes:
        file: the parquet file, relative to the dataset directory.
        first_row: the number of the first row within the file, from 0.
        rows: the rows.
    """

    file: Path
    first_row: int
    rows: pa.RecordBatch


def read_batches(
    dataset: Dataset, path: Path, columns: list[str], row_group: int | None = None
) -> Iterator[RowBatch]:
    """Stream ``columns`` of one of the dataset's files, or of one of its row groups.

    Raises:
        UnreadableFileError: the file is not parquet, or damaged.
    """
    file = path.relative_to(dataset.path)
    try:
        parquet = pq.ParquetFile(path)
        metadata = parquet.metadata
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        groups = range(len(counts)) if row_group is None else [row_group]
        first_row = sum(counts[: groups[0]]) if groups else 0
        last_row = first_row + sum(counts[group] for group in groups)
        for rows in parquet.iter_batches(ROWS_PER_BATCH, row_groups=groups, columns=columns):
            yield RowBatch(file, first_row, rows.select(columns))
            first_row += len(rows)
    except READ_ERRORS as error:
        raise UnreadableFileError.from_finding(dataset, unreadable(file, error)) from error
    if first_row != last_row or sum(counts) != metadata.num_rows:
        finding = unreadable(file, "its number of rows differs from its footer")
        raise UnreadableFileError.from_finding(dataset, finding)


def table_batches(
    dataset: Dataset, table: str, columns: list[str] | None = None
) -> Iterator[RowBatch]:
    """Stream a table, or some of its columns, file by file.

    Raises:
        UnreadableFileError: a file is not parquet, or damaged.
    """
    for path in dataset.files(table):
        yield from read_batches(dataset, path, columns or dataset.schema(table).names)


def unreadable(file: str | Path, why: object) -> Finding:
    """Return the finding that ``file`` cannot be read."""
    return Finding(
        "error",
        str(file),
        f"not a readable parquet file: {' '.join(str(why).split())}",
        "it is damaged or incomplete; copy or write it again",
    )


def ids(column: pa.Array) -> NDArray[np.int64]:
    """Return ids (n,) as int64, with -1 for null."""
    return np.asarray(pc.fill_null(column, -1))


def undecodable(texts: pa.Array) -> NDArray[np.bool_]:
    """Flag texts (n,) whose bytes are not UTF-8, which parquet readers let through."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        contents = texts.cast(pa.binary()).to_pylist()
        return np.array([not is_utf8(content or b"") for content in contents])
    return np.zeros(len(texts), dtype=np.bool_)


def readable(texts: pa.Array) -> pa.Array:
    """Return texts (n,) with null in place of those whose bytes are not UTF-8."""
    broken = undecodable(texts)
    return pc.if_else(pa.array(broken), pa.scalar(None, pa.string()), texts)


def positions(flags: Any) -> NDArray[np.int64]:
    """Return where ``flags`` (n,), a mask of Arrow or numpy, is true; null is false."""
    if isinstance(flags, pa.Array):
        flags = pc.fill_null(flags, False)
    return np.flatnonzero(np.asarray(flags))
