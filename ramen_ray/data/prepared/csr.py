"""Sparse rows on disk: clicks and edges as memory-mapped CSR arrays."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import (
    Float64s,
    Int64s,
    growing_array,
    id_type,
    map_array,
    map_new_array,
    ragged_positions,
)

ENTRIES_PER_BATCH = 1 << 20
LIGHTEST = 1e-300
"""Weight of an entry that is lost beside the others of its row; logarithms can be divided by it."""


@dataclass(frozen=True)
class Csr:
    """Rows of column ids, ascending and unique within a row.

    Weights are scaled by row: beside another of far larger weights, a row's differences between
    running sums would be lost.
    """

    indptr: NDArray[Any]  # (rows + 1,) int64, where each row starts in ``indices``
    indices: NDArray[Any]  # (entries,) int32 or int64 column ids
    cumulative_weights: Float64s | None = None  # (entries + 1,) from 0 on; None if all are equal

    @classmethod
    def from_pairs(
        cls,
        rows: NDArray[Any],
        columns: NDArray[Any],
        num_rows: int,
        weights: NDArray[Any] | None = None,
    ) -> "Csr":
        """Build from pairs in any order; weights are stored, scaled, only if they differ."""
        order = np.lexsort((columns, rows))
        indptr = np.zeros(num_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
        cumulative = None
        if weights is not None and len(weights) and np.ptp(weights) > 0:
            cumulative = cumulative_sum(scaled_by_row(weights[order], indptr))
        return cls(indptr, np.asarray(columns)[order], cumulative)

    @classmethod
    def to_fill(
        cls, num_rows: int, num_columns: int, num_entries: int, folder: Path | None = None
    ) -> "Csr":
        """Make zeros of :func:`id_type`, in files of ``folder`` for :meth:`open`, or in memory."""
        sizes = {"indptr": (num_entries + 1, num_rows + 1), "indices": (num_columns, num_entries)}
        if folder is None:
            return cls(*(np.zeros(length, id_type(limit)) for limit, length in sizes.values()))
        folder.mkdir(parents=True, exist_ok=True)
        files = ((folder / f"{name}.npy", *size) for name, size in sizes.items())
        return cls(*(map_new_array(file, id_type(top), (length,)) for file, top, length in files))

    @classmethod
    def open(cls, folder: Path) -> "Csr":
        """Memory-map the arrays in ``folder``."""
        weights = folder / "cumulative_weights.npy"
        return cls(
            map_array(folder / "indptr.npy"),
            map_array(folder / "indices.npy"),
            map_array(weights) if weights.exists() else None,
        )

    def save(self, folder: Path) -> None:
        """Write the arrays into ``folder``, for :meth:`open`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in vars(self).items():
            if array is not None:
                np.save(folder / f"{name}.npy", array)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def filled_rows(self) -> Int64s:
        """(n,) int64, the rows that have entries, ascending."""
        return np.flatnonzero(np.diff(self.indptr))

    def degrees(self, rows: NDArray[Any]) -> Int64s:
        """Count the entries of each of ``rows`` (n,); returns (n,) int64."""
        return self.indptr[rows + 1] - self.indptr[rows]

    def gather(self, rows: NDArray[Any]) -> tuple[Int64s, NDArray[Any]]:
        """Return the entries of ``rows`` (n,) as (position in ``rows``, column id) pairs."""
        degrees = self.degrees(rows)
        entries = ragged_positions(self.indptr[rows], degrees)
        return np.repeat(np.arange(len(rows)), degrees), self.indices[entries]

    def weights(self, entries: NDArray[Any]) -> Float64s:
        """Return the weights (n,) of ``entries`` (n,), all above 0, for comparison within a row."""
        if self.cumulative_weights is None:
            return np.ones(len(entries))
        before = self.cumulative_weights[entries]
        after = self.cumulative_weights[entries + 1]
        return np.maximum(after - before, LIGHTEST)

    def draw(self, rows: NDArray[Any], uniforms: Float64s) -> Int64s:
        """Draw a column id of each row (n,) by weight, by uniforms (n,) in [0, 1); -1 if empty."""
        start = self.indptr[rows]
        stop = self.indptr[rows + 1]
        if self.cumulative_weights is None:
            position = start + np.floor(uniforms * (stop - start)).astype(np.int64)
        else:
            low = self.cumulative_weights[start]
            high = self.cumulative_weights[stop]
            target = low + uniforms * (high - low)
            position = np.searchsorted(self.cumulative_weights, target, side="right") - 1
            position = np.clip(position, start, np.maximum(stop - 1, start))
        drawn = np.full(len(rows), -1, dtype=np.int64)
        linked = stop > start
        drawn[linked] = self.indices[position[linked]]
        return drawn


def write_csr(folder: Path, parts: Iterable[Csr]) -> None:
    """Write the rows of one or more parts for :meth:`Csr.open`; all have weights or none has."""
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
        for name in types.keys() - {"indices"}:
            append[name](np.zeros(1))
        entries = 0
        total = 0.0
        for part in chain([first], rest):
            append["indptr"](entries + part.indptr[1:])
            append["indices"](part.indices)
            entries += len(part.indices)
            if part.cumulative_weights is not None:
                append["cumulative_weights"](total + part.cumulative_weights[1:])
                total += float(part.cumulative_weights[-1])


def cumulative_sum(weights: NDArray[Any]) -> Float64s:
    """Return the running sum of ``weights`` (n,) with a leading zero, (n + 1,) float64."""
    total = np.zeros(len(weights) + 1, dtype=np.float64)
    np.cumsum(weights, dtype=np.float64, out=total[1:])
    return total


def scaled_by_row(weights: NDArray[Any], indptr: NDArray[Any]) -> Float64s:
    """Scale each row's weights (n,) to a sum from 1/2 to 1, by powers of 2: no digit is lost."""
    weights = np.asarray(weights, dtype=np.float64)
    degrees = np.diff(indptr)
    is_filled = degrees > 0
    if not is_filled.any():
        return weights
    sums = np.add.reduceat(weights, indptr[:-1][is_filled] - indptr[0])
    _, exponents = np.frexp(sums)
    return np.ldexp(weights, -np.repeat(exponents, degrees[is_filled]))


def accumulate(weights: Float64s, indptr: NDArray[Any]) -> None:
    """Turn a zero and weights (entries + 1,) into :attr:`Csr.cumulative_weights`, in place."""
    for first, last in row_batches(indptr, ENTRIES_PER_BATCH):
        start = indptr[first]
        stop = indptr[last]
        scaled = scaled_by_row(weights[start + 1 : stop + 1], indptr[first : last + 1])
        weights[start + 1 : stop + 1] = weights[start] + np.cumsum(scaled)


def row_batches(indptr: NDArray[Any], num_entries: int) -> Iterator[tuple[int, int]]:
    """Cut rows into ranges of about ``num_entries`` entries each, or of one row with more."""
    cuts = np.searchsorted(indptr, np.arange(num_entries, indptr[-1], num_entries))
    return pairwise(np.unique([0, *cuts, len(indptr) - 1]).tolist())
