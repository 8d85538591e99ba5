"""What is read of a user's column: how cells are converted, and which are wrong or unwanted."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.findings import FEW, FaultKind
from ramen_ray.data.store.schemas import FILTER, SPLITS
from ramen_ray.data.tables.reading.cells import (
    TIME_UNITS,
    UNITS_PER_SECOND,
    TimeUnit,
    as_numbers,
    as_seconds,
    as_strings,
    fits,
    has_nul,
    in_our_time,
    is_null_word,
    is_oddly_spelt,
    is_scientific,
)
from ramen_ray.errors import DatasetError

LEAST_WEIGHT = 1e-30
LARGEST_WEIGHT = 1e30  # their sums are float32 numbers above 0
ADVICE = "correct them, or leave these rows out with --skip-bad-rows"
ROUNDED = FaultKind(
    "cells are numbers in scientific notation, which have lost digits",
    "write ids as text, or as numbers with all digits",
    most=FEW,
    flags=is_scientific,
)
NULL_WORDS = FaultKind(
    "cells are words for nothing",
    "empty these cells; or leave the rows out, or keep them as texts, with"
    " --null-words leave-out or keep",
    most=FEW,
    flags=is_null_word,
)
NULL_PARTS = FaultKind(
    "cells are words for nothing, and are left out of the texts that they are joined to",
    "empty these cells; or keep them with --null-words keep",
    severity="warning",
)
NULS = FaultKind(
    "cells have NUL characters", "is the file damaged? Write it again", most=FEW, flags=has_nul
)
ODD_SPELLINGS = FaultKind(
    "cells have spaces around them, or accents apart from their letters: they look like others,"
    " and differ",
    "write each name in one way: trimmed, and in Unicode's form NFC",
    severity="warning",
    flags=is_oddly_spelt,
)

Convert = Callable[[pa.ChunkedArray], tuple[Any, Booleans]]
NullWords = Literal["refuse", "leave-out", "keep"]


@dataclass(frozen=True)
class Column:
    """A column to read; ``convert`` makes values (rows,) of its cells, and flags the bad ones."""

    name: str | tuple[str, ...]  # texts of several columns are joined by a space
    convert: Convert = as_strings
    fault: str = "are empty"  # what is wrong with bad cells, as in "3 cells are empty"
    type: pa.DataType = field(default_factory=pa.string)
    optional: bool = False  # a cell that is bad or unwanted is null, and its row is kept
    doubts: tuple[FaultKind, ...] = ()  # about values that are likely wrong, or are unwanted
    null_words: NullWords = "keep"  # what becomes of these in columns that are joined

    @property
    def names(self) -> tuple[str, ...]:
        """The user's columns."""
        return (self.name,) if isinstance(self.name, str) else self.name

    @property
    def shown(self) -> str:
        """How findings name it."""
        return " ".join(self.names)

    def cells(self, rows: pa.Table) -> tuple[pa.ChunkedArray, dict[str, Booleans]]:
        """Return its cells (rows,), joined by spaces if it is several columns.

        By column, flags (rows,) mark words for nothing that were left out of what was joined.
        """
        if len(self.names) == 1:
            return rows[self.names[0]], {}
        texts = []
        left_out = {}
        for name in self.names:
            text, _ = as_strings(rows[name])
            if self.null_words != "keep":
                left_out[name] = is_null_word(text)
                text = pc.if_else(pa.array(left_out[name]), "", text)
            texts.append(pc.utf8_trim_whitespace(text))
        joined = pc.binary_join_element_wise(*texts, " ")
        spaces = pc.replace_substring_regex(joined, r"  +", " ") if len(texts) > 2 else joined
        return pa.chunked_array([pc.utf8_trim_whitespace(spaces)]), left_out


@dataclass(frozen=True)
class AdColumns:
    """Names of the columns in a table of ads."""

    ad_id: str = "ad_id"
    """Id of an ad in a table of ads."""
    ad_text: tuple[str, ...] = ("text",)
    """Text of an ad in a table of ads; several columns are joined by a space."""
    ad_filters: tuple[str, ...] = ()
    """Columns of a table of ads that are kept to filter answers by, such as market and status."""


def text_column(
    name: str | tuple[str, ...],
    null_words: NullWords = "keep",
    change: Callable[[pa.Array], pa.Array] = pc.utf8_trim_whitespace,
    are_ids: bool = False,
    are_names: bool = False,
) -> Column:
    """Read a column of texts, or several to join; none are empty, and ``change`` is applied.

    Doubtful are NULs, words for nothing, which may be left out, ids that have lost digits, and odd
    spellings of ids, or of texts that are the names of what they stand for.
    """
    doubts = [ROUNDED] * are_ids + [NULS]
    if null_words != "keep":
        doubts.append(replace(NULL_WORDS, unwanted=null_words == "leave-out"))
    doubts += [ODD_SPELLINGS] * (are_ids or are_names)
    return Column(name, _texts(change), null_words=null_words, doubts=tuple(doubts))


def id_column(name: str, null_words: NullWords = "keep") -> Column:
    """Read a column of ids as they are, none of them empty or rounded."""
    return text_column(name, null_words, lambda ids: ids, are_ids=True)


def listed_id_column(name: str, null_words: NullWords) -> Column:
    """Read the ids of a table, or cells that name its rows: what it lists is no word for nothing.

    Such words are left out only where they are everywhere.
    """
    return id_column(name, "keep" if null_words == "refuse" else null_words)


def filter_columns(names: Collection[str]) -> dict[str, Column]:
    """Read columns to filter ads by, which may be empty; raises a DatasetError if one is twice."""
    convert = _texts(pc.utf8_trim_whitespace)
    columns = {FILTER + name: Column(name, convert, optional=True) for name in names}
    if len({name.casefold() for name in names}) < len(names):  # the engine ignores case
        raise DatasetError("--columns.ad-filters names a column twice")
    return columns


def weight_column(name: str, zeros: str = "", *, from_zero: bool = False) -> Column:
    """Read a column of numbers above 0, or ``from_zero`` on.

    ``zeros`` says why rows of 0 are left out, if they are.
    """

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        numbers, bad = as_numbers(cells)
        wrong = (numbers < LEAST_WEIGHT) | (numbers > LARGEST_WEIGHT)
        return numbers, bad | (wrong & (numbers != 0) if zeros or from_zero else wrong)

    numbers = "numbers from 0" if from_zero else "positive numbers"
    fault = f"are not {numbers} up to {LARGEST_WEIGHT:g}"
    is_zero = FaultKind(zeros, unwanted=True, flags=lambda numbers: numbers == 0)
    return Column(name, convert, fault, pa.float64(), doubts=(is_zero,) if zeros else ())


def grade_column(name: str, highest: float) -> Column:
    """Read a column of grades from 0 to ``highest``, as shares of it."""

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        numbers, bad = as_numbers(cells)
        return numbers / highest, bad | (numbers < 0) | (numbers > highest)

    fault = f"are not numbers from 0 to {highest:g} (--judged-highest is the best grade)"
    return Column(name, convert, fault, pa.float64())


def split_column(name: str) -> Column:
    """Read a column of splits, as their numbers in SPLITS."""

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        texts, _ = as_strings(cells)
        place = pc.index_in(pc.utf8_trim_whitespace(texts), pa.array(SPLITS))
        bad = np.asarray(pc.is_null(place))
        return pc.fill_null(place, 0), bad

    return Column(name, convert, f"are not one of {', '.join(SPLITS)}", pa.int8())


def time_column(name: str, unit: TimeUnit, flag: str) -> Column:
    """Read a column of times as float64 seconds since 1970; ``flag`` sets the unit of numbers."""
    outside = "cells are outside the years 1990 to 2100"
    others = [
        FaultKind(
            f"{outside}; they fit as {other}",
            f"set {flag} {other}; if only some do, write the column in one unit",
            always=True,
            flags=partial(fits, unit=unit, other=other),
        )
        for other in (TIME_UNITS if unit in UNITS_PER_SECOND else ())
    ]
    never = FaultKind(outside, ADVICE, flags=lambda seconds: ~in_our_time(seconds))
    counted = "days as yyyymmdd" if unit == "yyyymmdd" else f"{unit} since 1970"
    return Column(
        name,
        lambda cells: as_seconds(cells, unit),
        f"are not times (ISO 8601 or {counted})",
        pa.float64(),
        doubts=(*others, never),
    )


def within(column: Column, first: float, last: float, reasons: tuple[str, str]) -> Column:
    """Leave out rows of times before ``first`` and from ``last`` on, for these ``reasons``."""
    before = FaultKind(reasons[0], unwanted=True, flags=lambda seconds: seconds < first)
    after = FaultKind(reasons[1], unwanted=True, flags=lambda seconds: seconds >= last)
    return replace(column, doubts=(*column.doubts, before, after))


def _texts(change: Callable[[pa.Array], pa.Array]) -> Convert:
    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        texts, empty = as_strings(cells)
        return change(texts), empty

    return convert
