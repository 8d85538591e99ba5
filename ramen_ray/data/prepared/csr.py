"""Sparse rows on disk: clicks and edges as memory-mapped CSR arrays."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.mapped_files import growing_array, map_new_array


@dataclass(frozen=True)
class Csr:
    """Rows of column ids, ascending and unique within a row.

    Attributes:
        indptr: (rows + 1,) int64, where each row starts in ``indices``.
        indices: (entries,) int32 or int64 column ids.
        cumulative_weights: (entries + 1,) float64, running sum of the entries' weights with a
            leading zero; None if all weights are equal.
    """

    indptr: NDArray[Any]
    indices: NDArray[Any]
    cumulative_weights: NDArray[np.float64] | None = None

    @classmethod
    def from_pairs(
        cls,
        rows: NDArray[Any],
        columns: NDArray[Any],
        num_rows: int,
        weights: NDArray[Any] | None = None,
    ) -> "Csr":
        """Build from pairs in any order; weights are stored only if they differ."""
        order = np.lexsort((columns, rows))
        indptr = np.zeros(num_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
        cumulative = None
        if weights is not None and len(weights) and np.ptp(weights) > 0:
            cumulative = cumulative_sum(weights[order])
        return cls(indptr, np.asarray(columns)[order], cumulative)

    @classmethod
    def to_fill(
        cls, num_rows: int, num_columns: int, num_entries: int, folder: Path | None = None
    ) -> "Csr":
        """Make arrays of zeros, of the smaller types that hold row starts and ids.

        Args:
            num_rows: number of rows.
            num_columns: ids are below it.
            num_entries: entries of all rows.
            folder: keep them in files there, for :meth:`open`; None for memory.
        """

        def new(name: str, limit: int, length: int) -> NDArray[Any]:
            if folder is None:
                return np.zeros(length, id_type(limit))
            folder.mkdir(parents=True, exist_ok=True)
            return map_new_array(folder / f"{name}.npy", id_type(limit), (length,))

        rows = new("indptr", num_entries + 1, num_rows + 1)
        return cls(rows, new("indices", num_columns, num_entries))

    @classmethod
    def open(cls, folder: Path) -> "Csr":
        """Memory-map the arrays in ``folder``."""
        weights = folder / "cumulative_weights.npy"
        return cls(
            np.load(folder / "indptr.npy", mmap_mode="r"),
            np.load(folder / "indices.npy", mmap_mode="r"),
            np.load(weights, mmap_mode="r") if weights.exists() else None,
        )

    def save(self, folder: Path) -> None:
        """Write the arrays into ``folder``, for :meth:`open`."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "indptr.npy", self.indptr)
        np.save(folder / "indices.npy", self.indices)
        if self.cumulative_weights is not None:
            np.save(folder / "cumulative_weights.npy", self.cumulative_weights)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def filled_rows(self) -> Int64s:
        """(filled rows,) int64, the rows that have entries, ascending."""
        return np.flatnonzero(np.diff(self.indptr))

    def degrees(self, rows: NDArray[Any]) -> Int64s:
        """Count the entries of each of ``rows`` (n,); returns (n,) int64."""
        return self.indptr[rows + 1] - self.indptr[rows]

    def gather(self, rows: NDArray[Any]) -> tuple[Int64s, NDArray[Any]]:
        """Return the entries of ``rows`` (n,) as (position in ``rows``, column id) pairs."""
        degrees = self.degrees(rows)
        return np.repeat(np.arange(len(rows)), degrees), self.indices[
            ragged_positions(self.indptr[rows], degrees)
        ]

    def draw(self, rows: NDArray[Any], uniforms: NDArray[np.float64]) -> Int64s:
        """Draw one column id of each row by weight; rows without entries give -1.

        Args:
            rows: (n,) row numbers.
            uniforms: (n,) numbers in [0, 1), one per row.
        """
        start, stop = self.indptr[rows], self.indptr[rows + 1]
        if self.cumulative_weights is None:
            position = start + np.floor(uniforms * (stop - start)).astype(np.int64)
        else:
            low, high = self.cumulative_weights[start], self.cumulative_weights[stop]
            target = low + uniforms * (high - low)
            position = np.searchsorted(self.cumulative_weights, target, side="right") - 1
            position = np.clip(position, start, np.maximum(stop - 1, start))
        drawn = np.full(len(rows), -1, dtype=np.int64)
        linked = stop > start
        drawn[linked] = self.indices[position[linked]]
        return drawn


def id_type(limit: int) -> type[np.generic]:
    """Return the smaller type that holds ids below ``limit``."""
    return np.int32 if limit <= np.iinfo(np.int32).max else np.int64


def write_csr(folder: Path, parts: Iterable[Csr]) -> None:
    """Write the rows of all parts, one part after another, for :meth:`Csr.open`.

    Args:
        folder: the folder to write into.
        parts: at least one; all with weights or all without. One at a time is in memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rest = iter(parts)
    first = next(rest)
    weighted = first.cumulative_weights is not None
    types: dict[str, Any] = {"indptr": np.int64, "indices": first.indices.dtype}
    types |= {"cumulative_weights": np.float64} if weighted else {}
    with ExitStack() as files:
        append = {
            name: files.enter_context(growing_array(folder / f"{name}.npy", dtype))
            for name, dtype in types.items()
        }
        append["indptr"](np.zeros(1))
        if weighted:
            append["cumulative_weights"](np.zeros(1))
        entries, total = 0, 0.0
        for part in chain([first], rest):
            append["indptr"](entries + part.indptr[1:])
            append["indices"](part.indices)
            entries += len(part.indices)
            if part.cumulative_weights is not None:
                append["cumulative_weights"](total + part.cumulative_weights[1:])
                total += float(part.cumulative_weights[-1])


def side_by_side(parts: Sequence[Csr], num_columns: Sequence[int]) -> Csr:
    """Join tables of the same rows: the columns of each follow those of the ones before.

    Args:
        parts: the tables; their weights are left out.
        num_columns: how many columns each has.
    """
    if len(parts) == 1:
        return Csr(parts[0].indptr, parts[0].indices)
    every_row = np.arange(parts[0].num_rows)
    starts = np.cumsum([0, *num_columns])
    rows, columns = zip(*(part.gather(every_row) for part in parts), strict=True)
    shifted = [own + start for own, start in zip(columns, starts, strict=False)]
    return Csr.from_pairs(np.concatenate(rows), np.concatenate(shifted), len(every_row))


def cumulative_sum(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Return the running sum of ``weights`` (n,) with a leading zero, (n + 1,) float64."""
    total = np.zeros(len(weights) + 1, dtype=np.float64)
    np.cumsum(weights, dtype=np.float64, out=total[1:])
    return total


def ragged_positions(starts: NDArray[Any], lengths: NDArray[Any]) -> Int64s:
    """Concatenate the ranges [start, start + length) as (sum of lengths,) int64."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
