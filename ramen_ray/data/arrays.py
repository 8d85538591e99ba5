"""Arrays: their types in signatures, Arrow columns of lists as arrays, and arrays in files."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.format import dtype_to_descr, open_memmap, write_array_header_1_0
from numpy.typing import DTypeLike, NDArray

Booleans = NDArray[np.bool_]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


def list_entries(lists: pa.Array | pa.ChunkedArray) -> tuple[Int64s, pa.Array | pa.ChunkedArray]:
    """Flatten lists (n,) to the row of each entry and the entries, both (entries,)."""
    return pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)


def ragged_positions(starts: NDArray[Any], lengths: NDArray[Any]) -> Int64s:
    """Concatenate the ranges [start, start + length) as (sum of lengths,) int64."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)


def to_lists(entries: NDArray[Any] | pa.Array, lengths: NDArray[Any]) -> pa.ListArray:
    """Cut entries (entries,) into lists of these lengths (n,)."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(entries))


def click_pairs(queries: pa.RecordBatch | pa.Table) -> tuple[Int64s, Int64s]:
    """Return the query id and the ad id of each click, both (clicks,)."""
    rows, ad_ids = list_entries(queries["ad_ids"])
    return queries["query_id"].to_numpy()[rows], ad_ids.to_numpy()


def best_of_each(groups: NDArray[Any], k: int, *keys: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Return the first k rows of each group (rows,) in order of ``keys``, and ranks from 0.

    Lower values of the keys (rows,) come first, and each key breaks the ties of those before. Rows
    and ranks (kept,) come by group, then by rank.
    """
    order = np.lexsort((*reversed(keys), groups))
    ordered = groups[order]
    ranks = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return order[ranks < k], ranks[ranks < k]


def map_array(file: Path) -> NDArray[Any]:
    """Map an array in a ``.npy`` file, to read; processes on one machine share its pages."""
    return np.asarray(np.load(file, mmap_mode="r"))


def map_new_array(
    file: Path, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.memmap[Any, np.dtype[Any]]:
    """Map a new ``.npy`` file of zeros; raises an OSError if the disk has no room for it."""
    array = open_memmap(file, "w+", dtype, shape)
    with file.open("r+b") as opened:  # takes the room now: later, a write would end by SIGBUS
        os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
    return array


@contextmanager
def growing_array(file: Path, dtype: DTypeLike) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write an array (n,) of unknown length into a ``.npy`` file; yields what appends a piece."""
    header = {"descr": dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (0,)}
    with file.open("wb") as stream:
        write_array_header_1_0(stream, header)
        length = 0

        def append(values: NDArray[Any]) -> None:
            nonlocal length
            stream.write(np.ascontiguousarray(values, dtype).data)
            length += len(values)

        yield append
        stream.seek(0)  # NumPy leaves room in the header for the length
        write_array_header_1_0(stream, header | {"shape": (length,)})


def write_pieces(file: Path, dtype: DTypeLike, pieces: Iterable[NDArray[Any]]) -> None:
    """Write pieces (n,), one after another, as an array in a ``.npy`` file."""
    with growing_array(file, dtype) as append:
        for piece in pieces:
            append(piece)


def publish(folder: Path) -> None:
    """Let other machines see what was written into mapped ``.npy`` files of a shared folder."""
    for file in folder.rglob("*.npy"):
        file.open("r+b").close()  # NFS sends a file's pages when somebody closes it who could write
