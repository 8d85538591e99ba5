"""What is read of a user's column: how cells are converted, and which are wrong or unwanted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.tables.cells import (
    TimeUnit,
    as_numbers,
    as_seconds,
    as_strings,
    fitting_unit,
    in_our_time,
    is_null_word,
    is_scientific,
)
from ramen_ray.data.tables.faults import ADVICE

NULL_ADVICE = (
    "empty these cells; or leave the rows out, or keep them as texts, with"
    " --null-words leave-out or keep"
)
NO_DOUBT = "keep"

Convert = Callable[[pa.ChunkedArray], tuple[Any, Booleans]]
Explain = Callable[[pa.ChunkedArray], tuple[str, str]]


@dataclass(frozen=True)
class Doubt:
    """Good cells that are likely wrong: a few are a warning, more are an error.

    Attributes:
        flags: marks such values (rows,).
        fault: what is wrong, as in "3 cells are words for nothing".
        advice: what to do about it.
        leave_out: whether their rows are left out, however many there are.
    """

    flags: Callable[[Any], Booleans]
    fault: str
    advice: str
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
        fault: what is wrong with bad cells, as in "3 cells are empty", or what says it of them,
            with an advice.
        type: the values' type.
        optional: whether a bad cell is null, and its row is kept.
        doubts: values that are likely wrong.
        filters: rows that are not wanted.
    """

    name: str | tuple[str, ...]
    convert: Convert = as_strings
    fault: str | Explain = "are empty"
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

    def explain(self, cells: pa.ChunkedArray) -> tuple[str, str]:
        """Say what is wrong with bad cells, and what to do about it."""
        return (self.fault, ADVICE) if isinstance(self.fault, str) else self.fault(cells)

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
    null_words: str = NO_DOUBT,
    *,
    skip_bad_rows: bool = False,
    change: Callable[[pa.Array], pa.Array] | None = None,
) -> Column:
    """Read a column of texts, none of them empty.

    Args:
        name: the column, or several to join.
        null_words: whether words such as NULL are ``refuse``d, ``leave-out`` or ``keep``.
        skip_bad_rows: whether rows with refused words are left out.
        change: applied to the texts.
    """

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        texts, empty = as_strings(cells)
        return (change(texts) if change else texts), empty

    return Column(name, convert, doubts=_null_words(null_words, skip_bad_rows))


def id_column(name: str, null_words: str = NO_DOUBT, *, skip_bad_rows: bool = False) -> Column:
    """Read a column of ids, none of them empty or rounded."""
    rounded = Doubt(
        is_scientific,
        "are numbers in scientific notation, which have lost digits",
        "write ids as text, or as numbers with all digits",
        skip_bad_rows,
    )
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


def time_column(name: str, unit: TimeUnit, flag: str, filters: tuple[Filter, ...] = ()) -> Column:
    """Read a column of times of our time, as float64 seconds since 1970.

    Args:
        name: the column.
        unit: what numbers in it count.
        flag: the flag that sets the unit.
        filters: rows that are not wanted.
    """

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        seconds, bad = as_seconds(cells, unit)
        return seconds, bad | ~in_our_time(seconds)

    def explain(cells: pa.ChunkedArray) -> tuple[str, str]:
        seconds, bad = as_seconds(cells, unit)
        if bad.all():
            counted = "days as yyyymmdd" if unit == "yyyymmdd" else f"{unit} since 1970"
            return f"are not times (ISO 8601 or {counted})", ADVICE
        other = fitting_unit(seconds[~bad], unit)
        advice = f"they fit as {other}: set {flag} {other}" if other else ADVICE
        return "are outside the years 1990 to 2100", advice

    return Column(name, convert, explain, pa.float64(), filters=filters)


def _null_words(null_words: str, skip_bad_rows: bool) -> tuple[Doubt, ...]:
    if null_words == NO_DOUBT:
        return ()
    leave_out = skip_bad_rows or null_words == "leave-out"
    return (Doubt(is_null_word, "are words for nothing", NULL_ADVICE, leave_out),)
