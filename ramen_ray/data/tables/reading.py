"""Read a file of a user's table batch by batch, whatever its format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ramen_ray.data import sources
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.tables.faults import Kind

# provisional: on top of data.sources, until the readers of whole files are here


@dataclass(frozen=True)
class TableFile:
    """A file of a user's table."""

    path: str
    pieces: tuple[sources.Piece, ...]


@dataclass(frozen=True)
class Rows:
    """A batch of a file's rows.

    Attributes:
        cells: the columns that were asked for.
        numbers: (rows,) int64: in parquet the row of the file, from 0; in text files the line that
            it begins on, from 1.
        faults: kinds of lines that could not be read, or not without a doubt, their lines (n,), and
            examples.
    """

    cells: pa.Table
    numbers: Int64s
    faults: Sequence[tuple[Kind, Int64s, Sequence[Any]]] = ()


def find_files(source: str, columns: Sequence[str]) -> list[TableFile]:
    """Find the files of ``source``, in a fixed order."""
    by_path: dict[str, list[sources.Piece]] = {}
    for piece in sources.find_pieces(source, columns):
        by_path.setdefault(piece.path, []).append(piece)
    return [TableFile(path, tuple(pieces)) for path, pieces in by_path.items()]


def read_file(file: TableFile) -> Iterator[Rows]:
    """Read a file's rows, in their order."""
    for piece in file.pieces:
        for batch in sources.read_piece(piece):
            yield Rows(batch.rows, np.asarray(batch.row_numbers))
