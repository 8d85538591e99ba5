"""Arrays: their types in signatures, lists of Arrow as arrays, arrays in files, and hashes."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


def id_type(limit: int) -> type[np.generic]:
    """Return the smaller type that holds ids below ``limit``."""
    return np.int32 if limit <= np.iinfo(np.int32).max else np.int64


def mix(values: NDArray[Any]) -> UInt64s:
    """Apply SplitMix64's finaliser (a bijection on 64-bit integers; Steele et al. 2014)."""
    z = np.asarray(values).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keyed_hash(key: tuple[int, ...], values: NDArray[Any]) -> UInt64s:
    """Hash ``values`` (n,) under ``key``; the same key and value always give the same number."""
    seed = np.zeros(1, dtype=np.uint64)
    for number in key:
        seed = mix(seed ^ np.array([number % 2**64], dtype=np.uint64))
    return mix(np.asarray(values).astype(np.uint64) ^ seed)


def uniforms(key: tuple[int, ...], values: NDArray[Any]) -> Float64s:
    """Map ``values`` (n,) to independent-looking numbers in [0, 1) under ``key``."""
    return (keyed_hash(key, values) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class HashIndex:
    """Finds rows by hash: ``hashes`` (rows,) ascending, and their ``rows`` (rows,), int32 or 64."""

    hashes: UInt64s
    rows: NDArray[Any]

    @classmethod
    def from_hashes(cls, hashes: UInt64s) -> "HashIndex":
        """Index rows 0, 1, ...; several may have the same hash."""
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], order.astype(id_type(len(order))))

    def all(self, hashes: UInt64s) -> tuple[Int64s, Int64s]:
        """Return all rows that have one of ``hashes`` (n,), as (position in ``hashes``, row)."""
        # in their own order neighbours share cache lines: of 10M, a million take 0.12 s, not 1.8 s
        order = np.argsort(hashes)
        starts, ends = np.empty((2, len(hashes)), dtype=np.int64)
        starts[order] = np.searchsorted(self.hashes, hashes[order])
        ends[order] = np.searchsorted(self.hashes, hashes[order], "right")
        counts = ends - starts
        rows = self.rows[ragged_positions(starts, counts)]
        return np.repeat(np.arange(len(hashes)), counts), rows.astype(np.int64)


def hash_texts(token_ids: NDArray[Any], offsets: NDArray[Any]) -> UInt64s:
    """Hash texts (texts,) of tokens (tokens,) below 2³² that start at ``offsets`` (texts + 1,)."""
    return mix(_sums(token_ids.astype(np.uint64), np.asarray(offsets) - offsets[0]))


def hash_strings(strings: pa.Array) -> UInt64s:
    """Hash strings (n,) to (n,) uint64, null as ""; some two of n collide in n² / 2⁶⁵ of cases."""
    strings = pc.fill_null(strings.cast(pa.string()), "")
    _, bounds, data = strings.buffers()
    span = slice(strings.offset, strings.offset + len(strings) + 1)
    ends = np.frombuffer(bounds, dtype=np.int32)[span].astype(np.int64)
    if data is None or not len(strings):
        return mix(np.zeros(len(strings), dtype=np.uint64))
    letters = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends)
    num_words = -(-lengths // 8)
    offsets = np.concatenate([[0], np.cumsum(num_words)])
    # of each word, within its string
    first_bytes = 8 * ragged_positions(np.zeros_like(num_words), num_words)
    padded = np.append(letters, np.zeros(8, dtype=np.uint8))
    at_any_byte = np.ndarray(len(letters) + 1, np.uint64, padded, strides=(1,))
    words = at_any_byte[np.repeat(ends[:-1] - ends[0], num_words) + first_bytes]
    num_bytes = np.minimum(np.repeat(lengths, num_words) - first_bytes, 8)
    words &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (64 - 8 * num_bytes).astype(np.uint64)
    return mix(_sums(words, offsets) ^ lengths.astype(np.uint64))


def _sums(values: UInt64s, offsets: Int64s) -> UInt64s:
    """Sum, for each sequence of ``values``, the hashes of each value at its position."""
    lengths = np.diff(offsets)
    positions = ragged_positions(np.zeros_like(lengths), lengths)
    running = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(mix(mix(positions) ^ values), out=running[1:])  # overflows cancel
    return running[offsets[1:]] - running[offsets[:-1]]
