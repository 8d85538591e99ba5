"""Convert the cells of a column to texts, numbers or times, and flag those that are not."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans

LARGEST_WHOLE_FLOAT = 2**53
NUMBER = r"^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*$"
ISO_DAY = r"^\d{4}-\d\d-\d\d$"
ISO_TIME = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?$"
ISO_ZONE = r":\S*(Z|[+-]\d\d(:?\d\d)?)$"
UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}


def as_strings(column: pa.ChunkedArray) -> tuple[pa.Array, Booleans]:
    """Return a column's cells as strings, and which (rows,) are null, empty or white space.

    Raises:
        ValueError: the cells are lists, are not UTF-8, or are floats that lost digits of an id.
    """
    values = _one_chunk(column)
    if pa.types.is_floating(values.type) and (
        pc.any(pc.greater(pc.abs(values.cast(pa.float64())), LARGEST_WHOLE_FLOAT)).as_py()
    ):
        raise ValueError("numbers above 2**53 have lost digits; write these ids as text")
    strings = values.cast(pa.string())
    empty = pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(strings)), 0), True)
    return pc.fill_null(strings, ""), empty.to_numpy(zero_copy_only=False)


def as_numbers(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], Booleans]:
    """Return a column's cells as float64, and which (rows,) are not finite numbers (given as 0)."""
    values = _one_chunk(column)
    if not is_number(values.type):
        strings = values.cast(pa.string())
        good = pc.fill_null(pc.match_substring_regex(strings, NUMBER), False)
        values = pc.utf8_trim_whitespace(pc.if_else(good, strings, None))
    numbers = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan).to_numpy(
        zero_copy_only=False
    )
    bad = ~np.isfinite(numbers)
    return np.where(bad, 0.0, numbers), bad


def as_seconds(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], Booleans]:
    """Return a column's times as float64 seconds since 1970, and which (rows,) are not times.

    Times are timestamps or dates, numbers (seconds), or ISO 8601 text; without a zone it is UTC.
    """
    values = _one_chunk(column)
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s" if pa.types.is_date32(values.type) else "ms"))
    if pa.types.is_timestamp(values.type):
        if values.type.unit == "ns":  # has more digits than a float64
            values = values.cast(pa.timestamp("us"), safe=False)
        seconds, bad = as_numbers(pa.chunked_array([values.cast(pa.int64())]))
        return seconds / UNITS_PER_SECOND[values.type.unit], bad
    if is_number(values.type):
        return as_numbers(column)
    strings = pc.utf8_trim_whitespace(values.cast(pa.string()))
    from_iso, not_iso = _iso_seconds(strings)
    from_number, no_number = as_numbers(pa.chunked_array([strings]))
    return np.where(not_iso, from_number, from_iso), not_iso & no_number


def _iso_seconds(strings: pa.Array) -> tuple[NDArray[np.float64], Booleans]:
    days, times, zones = (
        pc.fill_null(pc.match_substring_regex(strings, form), False)
        for form in (ISO_DAY, ISO_TIME, ISO_ZONE)
    )
    midnight = pc.binary_join_element_wise(strings, "00:00Z", " ")
    in_utc = pc.binary_join_element_wise(strings, "Z", "")
    texts = pc.if_else(days, midnight, pc.if_else(zones, strings, in_utc))
    texts = pc.if_else(pc.or_(days, times), texts, None)
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    try:
        found = texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    except pa.ArrowInvalid:  # such as a 13th month
        found = pa.array([_microseconds(text) for text in texts.to_pylist()], pa.int64())
    microseconds, bad = as_numbers(pa.chunked_array([found]))
    return microseconds / 10**6, bad


def _microseconds(text: str | None) -> int | None:
    try:
        return pa.array([text]).cast(pa.timestamp("us", "UTC")).cast(pa.int64())[0].as_py()
    except pa.ArrowInvalid:
        return None


def cell_bytes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return how many bytes the cells of a column of texts have (rows,); of other columns 0."""
    lengths = [np.zeros(0, dtype=np.int64), *map(_lengths, column.chunks)]
    return np.concatenate(lengths)


def _lengths(values: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_dictionary(values.type):
        of_entries = pa.array(_lengths(values.dictionary))
        return np.asarray(pc.fill_null(of_entries.take(values.indices), 0))
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        values = values.cast(pa.large_binary())
    if (
        pa.types.is_string(values.type)
        or pa.types.is_large_string(values.type)
        or (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type))
    ):
        return np.asarray(pc.fill_null(pc.binary_length(values), 0), dtype=np.int64)
    return np.zeros(len(values), dtype=np.int64)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type has numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunk = column.combine_chunks()
    return pc.cast(chunk, chunk.type.value_type) if pa.types.is_dictionary(chunk.type) else chunk
