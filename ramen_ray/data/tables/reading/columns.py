"""What is read of a user's column: how cells are converted, and which are wrong or unwanted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.tables.reading.cells import (
    TimeUnit,
    as_numbers,
    as_seconds,
    as_strings,
    fitting_unit,
    in_our_time,
    is_null_word,
    is_scientific,
)
from ramen_ray.data.tables.reading.faults import ADVICE, FEW, Kind

NULL_ADVICE = (
    "empty these cells; or leave the rows out, or keep them as texts, with"
    " --null-words leave-out or keep"
)

Convert = Callable[[pa.ChunkedArray], tuple[Any, Booleans]]
NullWords = Literal["refuse", "leave-out", "keep"]


@dataclass(frozen=True)
class Doubt:
    """Cells that can be converted, but are likely wrong.

    Attributes:
        flags: marks such values (rows,).
        kind: says what is wrong with values that are flagged; its column is set later.
        leave_out: whether their rows are left out.
    """

    flags: Callable[[Any], Booleans]
    kind: Callable[[Any], Kind]
    leave_out: bool


@dataclass(frozen=True)
class Filter:
    """Good rows that are not wanted.

    Attributes:
        flags: marks such values (rows,).
        reason: what they are, as in "2 rows left out: impressions".
    """

    flags: Callable[[Any], Booleans]
    reason: str


@dataclass(frozen=True)
class Column:
    """A column to read.

    Attributes:
        name: what the user calls it; texts of several columns are joined by a space.
        convert: turns its cells (rows,) into values (rows,), and flags (rows,) the bad ones.
        fault: what is wrong with bad cells, as in "3 cells are empty".
        type: the values' type.
        optional: whether a cell that is bad or to be left out is null, and its row is kept.
        doubts: values that are likely wrong.
        filters: rows that are not wanted.
    """

    name: str | tuple[str, ...]
    convert: Convert = as_strings
    fault: str = "are empty"
    type: pa.DataType = field(default_factory=pa.string)
    optional: bool = False
    doubts: tuple[Doubt, ...] = ()
    filters: tuple[Filter, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The user's columns."""
        return (self.name,) if isinstance(self.name, str) else self.name

    @property
    def shown(self) -> str:
        """How findings name it."""
        return " ".join(self.names)

    def cells(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return its cells (rows,), joined if it is several columns; empty parts are left out."""
        if len(self.names) == 1:
            return rows[self.names[0]]
        texts = [pc.utf8_trim_whitespace(as_strings(rows[name])[0]) for name in self.names]
        joined = pc.binary_join_element_wise(*texts, " ")
        spaces = pc.replace_substring_regex(joined, r"  +", " ") if len(texts) > 2 else joined
        return pa.chunked_array([pc.utf8_trim_whitespace(spaces)])


def text_column(
    name: str | tuple[str, ...],
    null_words: NullWords = "keep",
    *,
    skip_bad_rows: bool = False,
    change: Callable[[pa.Array], pa.Array] = pc.utf8_trim_whitespace,
) -> Column:
    """Read a column of texts, none of them empty.

    Args:
        name: the column, or several to join.
        null_words: whether words such as NULL are refused, left out or kept.
        skip_bad_rows: whether rows with refused words are left out.
        change: applied to the texts.
    """

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        texts, empty = as_strings(cells)
        return change(texts), empty

    return Column(name, convert, doubts=_null_words(null_words, skip_bad_rows))


def id_column(name: str, null_words: NullWords = "keep", *, skip_bad_rows: bool = False) -> Column:
    """Read a column of ids, none of them empty or rounded."""
    rounded = Doubt(is_scientific, lambda _: ROUNDED, skip_bad_rows)
    return Column(name, doubts=(rounded, *_null_words(null_words, skip_bad_rows)))


def weight_column(name: str, low: float, high: float = np.inf, zeros: str = "") -> Column:
    """Read a column of finite numbers from ``low`` to ``high``.

    Args:
        name: the column.
        low: the smallest good number, above 0.
        high: the largest.
        zeros: what rows of 0 are, which are then left out; by default, 0 is a bad number.
    """

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        numbers, bad = as_numbers(cells)
        wrong = (numbers < low) | (numbers > high)
        return numbers, bad | (wrong & ~is_zero(numbers) if zeros else wrong)

    def is_zero(numbers: Any) -> Booleans:
        return np.asarray(numbers) == 0

    limit = f" up to {high:g}" if np.isfinite(high) else ""
    filters = (Filter(is_zero, zeros),) if zeros else ()
    return Column(name, convert, f"are not positive numbers{limit}", pa.float64(), filters=filters)


def time_column(
    name: str,
    unit: TimeUnit,
    flag: str,
    *,
    skip_bad_rows: bool = False,
    filters: tuple[Filter, ...] = (),
) -> Column:
    """Read a column of times of our time, as float64 seconds since 1970.

    Args:
        name: the column.
        unit: what numbers in it count.
        flag: the flag that sets the unit.
        skip_bad_rows: whether rows of other times are left out, if they fit no other unit.
        filters: rows that are not wanted.
    """

    def outside(seconds: Any) -> Kind:
        other = fitting_unit(np.asarray(seconds), unit)
        advice = f"they fit as {other}: set {flag} {other}" if other else ADVICE
        return Kind("cells are outside the years 1990 to 2100", advice, always=bool(other))

    doubt = Doubt(lambda seconds: ~in_our_time(np.asarray(seconds)), outside, skip_bad_rows)
    counted = "days as yyyymmdd" if unit == "yyyymmdd" else f"{unit} since 1970"
    return Column(
        name,
        lambda cells: as_seconds(cells, unit),
        f"are not times (ISO 8601 or {counted})",
        pa.float64(),
        doubts=(doubt,),
        filters=filters,
    )


ROUNDED = Kind(
    "cells are numbers in scientific notation, which have lost digits",
    "write ids as text, or as numbers with all digits",
    most=FEW,
)
NULL_WORDS = Kind("cells are words for nothing", NULL_ADVICE, most=FEW)


def _null_words(null_words: NullWords, skip_bad_rows: bool) -> tuple[Doubt, ...]:
    if null_words == "keep":
        return ()
    leave_out = skip_bad_rows or null_words == "leave-out"
    return (Doubt(is_null_word, lambda _: NULL_WORDS, leave_out),)
