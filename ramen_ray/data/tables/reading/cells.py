"""Convert the cells of a column to texts, numbers or times, and flag those that are not."""

import unicodedata
import uuid
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Float64s
from ramen_ray.data.store.same_texts import INVISIBLE, NULL_WORDS

FIRST_ROUNDED = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}
"""From here on a float of the type may stand for several whole numbers."""
NUMBER = r"^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*$"
SCIENTIFIC = r"^\s*[+-]?\d([.,]\d*)?[eE]\+?\d+\s*$"
NOTHING = INVISIBLE + "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
ACCENT = r"[\x{300}-\x{36f}]"
ISO_TIME = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
LONGEST = max(map(len, NULL_WORDS))
UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
TimeUnit = Literal["s", "ms", "us", "ns", "yyyymmdd"]
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
EARLIEST = 631_152_000
LATEST = 4_102_444_800
"""The years 1990 to 2100, in seconds since 1970: other times are in another unit, or wrong."""


def as_strings(column: pa.ChunkedArray) -> tuple[pa.Array, Booleans]:
    """Return a column's cells as strings, and which (rows,) are null, or show nothing.

    Raises a ValueError for lists, cells that are not UTF-8, and floats that lost digits of an id.
    """
    strings = pc.fill_null(_text(plain_values(column)), "")
    return strings, np.asarray(pc.equal(pc.utf8_trim(strings, NOTHING), ""))


def as_numbers(column: pa.ChunkedArray) -> tuple[Float64s, Booleans]:
    """Return a column's cells as float64, and which (rows,) are not finite numbers (given as 0)."""
    values = plain_values(column)
    if not is_number(values.type):
        strings = values.cast(pa.string())
        good = pc.fill_null(pc.match_substring_regex(strings, NUMBER), False)
        values = pc.utf8_trim_whitespace(pc.if_else(good, strings, None))
    numbers = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan).to_numpy(
        zero_copy_only=False
    )
    bad = ~np.isfinite(numbers)
    return np.where(bad, 0.0, numbers), bad


def as_seconds(column: pa.ChunkedArray, unit: TimeUnit = "s") -> tuple[Float64s, Booleans]:
    """Return a column's times as float64 seconds since 1970, and which (rows,) are not times.

    Times are timestamps or dates, numbers of ``unit``, or ISO 8601 text; without a zone it is UTC.
    Raises a ValueError for floats that have lost digits of times.
    """
    values = plain_values(column)
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s" if pa.types.is_date32(values.type) else "ms"))
    if pa.types.is_timestamp(values.type):
        if values.type.unit == "ns":  # has more digits than a float64
            values = values.cast(pa.timestamp("us"), safe=False)
        counts, bad = as_numbers(pa.chunked_array([values.cast(pa.int64())]))
        return counts / UNITS_PER_SECOND[values.type.unit], bad
    if values.type in (pa.float16(), pa.float32()):
        raise ValueError("times have lost digits; write whole numbers, float64 or timestamps")
    if is_number(values.type):
        return _counted(column, unit)
    strings = pc.utf8_trim_whitespace(values.cast(pa.string()))
    strings = pc.if_else(pc.match_substring_regex(strings, SCIENTIFIC), None, strings)
    from_iso, not_iso = _iso_seconds(strings)
    from_number, no_number = _counted(pa.chunked_array([strings]), unit)
    return np.where(not_iso, from_number, from_iso), not_iso & no_number


def fits(seconds: Float64s, unit: TimeUnit, other: TimeUnit) -> Booleans:
    """Flag the ``seconds`` (n,), read as ``unit``, that lie in 1990 to 2100 only as ``other``."""
    flags = ~in_our_time(seconds)
    if flags.any():
        counts = pa.chunked_array([pa.array(seconds * UNITS_PER_SECOND[unit])])
        as_other, bad = _counted(counts, other)
        flags &= ~bad & in_our_time(as_other)
    return flags


def in_our_time(seconds: Float64s) -> Booleans:
    """Flag the times (n,) from 1990 to 2100."""
    return (seconds >= EARLIEST) & (seconds < LATEST)


def is_scientific(cells: pa.Array) -> Booleans:
    """Flag the strings (n,) that are whole numbers in scientific notation, such as 1.34E+18."""
    if not pc.any(pc.less(cells, ":")).as_py():  # as digits, signs and spaces are; takes no time
        return np.zeros(len(cells), dtype=bool)
    return np.asarray(pc.match_substring_regex(cells, SCIENTIFIC))


def is_null_word(cells: pa.Array) -> Booleans:
    """Flag the strings (n,) that programs write for nothing, such as NULL or N/A."""
    trimmed = pc.utf8_trim_whitespace(cells)
    flags = np.asarray(pc.fill_null(pc.less_equal(pc.binary_length(trimmed), LONGEST), False))
    if flags.any():  # of few cells: to look up all takes longer than to read them
        flags = flags.copy()
        flags[flags] = np.asarray(pc.is_in(trimmed.filter(pa.array(flags)), pa.array(NULL_WORDS)))
    return flags


def is_oddly_spelt(cells: pa.Array) -> Booleans:
    """Flag the strings (n,) with white space at an end, or accents apart from their letters."""
    flags = np.array(pc.not_equal(pc.utf8_trim_whitespace(cells), cells))
    accented = np.flatnonzero(pc.match_substring_regex(cells, ACCENT))
    for place, text in zip(accented, cells.take(pa.array(accented)).to_pylist(), strict=True):
        flags[place] |= not unicodedata.is_normalized("NFC", text)
    return flags


def has_nul(cells: pa.Array) -> Booleans:
    """Flag the strings (n,) with a NUL, which other programs take for their end."""
    letters = cells.buffers()[2]
    if not letters or np.frombuffer(letters, np.uint8).all():  # takes no time
        return np.zeros(len(cells), dtype=bool)
    return np.asarray(pc.match_substring(cells, "\0"))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type has texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type has numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _counted(column: pa.ChunkedArray, unit: TimeUnit) -> tuple[Float64s, Booleans]:
    numbers, bad = as_numbers(column)
    if unit != "yyyymmdd":
        return numbers / UNITS_PER_SECOND[unit], bad
    digits = pa.array(np.where((numbers >= 1e7) & (numbers < 1e8), numbers, 0).astype(np.int64))
    parts = r"^(\d{4})(\d\d)(\d\d)$"
    return _iso_seconds(pc.replace_substring_regex(digits.cast(pa.string()), parts, r"\1-\2-\3"))


def _iso_seconds(strings: pa.Array) -> tuple[Float64s, Booleans]:
    import pandas as pd  # takes half a second

    strings = pc.replace_substring_regex(strings, r"(\.\d{6})\d+| UTC$", r"\1")
    is_time = pc.fill_null(pc.match_substring_regex(strings, ISO_TIME), False)
    texts = pc.if_else(is_time, strings, None).to_pandas()
    times = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
    since_1970 = pa.array(times).cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    microseconds, bad = as_numbers(pa.chunked_array([since_1970]))
    return microseconds / 10**6, bad


def _text(values: pa.Array) -> pa.StringArray:
    """Write values as text, whole numbers with all their digits."""
    if pa.types.is_floating(values.type):
        first = FIRST_ROUNDED[values.type]
        numbers = values.cast(pa.float64())
        if pc.any(pc.greater_equal(pc.abs(numbers), first)).as_py():
            power = first.bit_length() - 1
            raise ValueError(
                f"numbers from 2**{power} on have lost digits; write these ids as text or integers"
            )
        whole = pc.equal(numbers, pc.floor(numbers))
        digits = pc.if_else(whole, numbers, None).cast(pa.int64()).cast(pa.string())
        short = numbers if pa.types.is_float16(values.type) else values
        texts = pc.coalesce(digits, short.cast(pa.string()))
        return pc.if_else(pc.is_nan(numbers), None, texts)
    if pa.types.is_decimal(values.type):
        return pc.replace_substring_regex(values.cast(pa.string()), r"\.0+$|(^0)E-\d+$", r"\1")
    if pa.types.is_fixed_size_binary(values.type) and values.type.byte_width == 16:
        return pa.array(
            [None if v is None else str(uuid.UUID(bytes=v)) for v in values.to_pylist()]
        )
    return values.cast(pa.string())


def plain_values(column: pa.ChunkedArray) -> pa.Array:
    """Return a column's values (rows,) in one array, without dictionaries and extension types."""
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # more than 2 GiB of texts
        values = pa.concat_arrays(chunk.cast(pa.large_string()) for chunk in values.chunks)
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    return (
        pc.cast(values, values.type.value_type) if pa.types.is_dictionary(values.type) else values
    )
