"""Stateless random numbers and hashes: a keyed 64-bit mix of integers, vectorised."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]


def mix(values: NDArray[Any]) -> UInt64s:
    """Apply SplitMix64's finaliser (a bijection on 64-bit integers; Steele et al. 2014)."""
    z = np.asarray(values).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keyed_hash(key: tuple[int, ...], values: NDArray[Any]) -> UInt64s:
    """Hash ``values`` (n,) under ``key``; the same key and value always give the same number."""
    seed = np.zeros(1, dtype=np.uint64)
    for part in key:
        seed = mix(seed ^ np.array([part % 2**64], dtype=np.uint64))
    return mix(np.asarray(values).astype(np.uint64) ^ seed)


def uniforms(key: tuple[int, ...], values: NDArray[Any]) -> NDArray[np.float64]:
    """Map ``values`` (n,) to independent-looking numbers in [0, 1) under ``key``."""
    return (keyed_hash(key, values) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hash_texts(token_ids: NDArray[Any], offsets: NDArray[Any]) -> UInt64s:
    """Hash each text's tokens; equal texts hash equally whichever table they lie in.

    Args:
        token_ids: (tokens,) all texts' tokens, one text after the other.
        offsets: (texts + 1,) where each text starts.

    Returns:
        (texts,) uint64.
    """
    lengths = np.diff(offsets)
    position = np.arange(len(token_ids)) - np.repeat(offsets[:-1] - offsets[0], lengths)
    mixed = mix(mix(position) ^ token_ids.astype(np.uint64))
    running = np.zeros(len(token_ids) + 1, dtype=np.uint64)
    np.cumsum(mixed, out=running[1:])  # wraps around, and differences wrap back
    starts = np.asarray(offsets) - offsets[0]
    return mix(running[starts[1:]] - running[starts[:-1]])


def hash_strings(strings: pa.Array) -> UInt64s:
    """Hash strings (n,), eight bytes at a time; equal strings hash equally, null as the empty one.

    Two of n different strings share a hash with a probability of about n² / 2⁶⁵.

    Returns:
        (n,) uint64.
    """
    strings = pc.fill_null(strings.cast(pa.string()), "")
    _, offsets, data = strings.buffers()
    span = slice(strings.offset, strings.offset + len(strings) + 1)
    ends = np.frombuffer(offsets, dtype=np.int32)[span].astype(np.int64)
    if data is None or not len(strings):
        return mix(np.zeros(len(strings), dtype=np.uint64))
    letters = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends)
    num_words = -(-lengths // 8)
    starts = np.concatenate([[0], np.cumsum(num_words)])
    padded = np.zeros(8 * starts[-1], dtype=np.uint8)
    shifts = np.repeat(8 * starts[:-1] - (ends[:-1] - ends[0]), lengths)
    padded[np.arange(len(letters)) + shifts] = letters
    words = padded.view(np.uint64)
    position = np.arange(len(words)) - np.repeat(starts[:-1], num_words)
    running = np.zeros(len(words) + 1, dtype=np.uint64)
    np.cumsum(mix(mix(position) ^ words), out=running[1:])  # wraps around, and back
    return mix((running[starts[1:]] - running[starts[:-1]]) ^ lengths.astype(np.uint64))
