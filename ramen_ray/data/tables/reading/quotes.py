"""Find where the records of a CSV file begin and end, and quotes that do not follow its rules.

A cell that begins with a quote ends with one, before a delimiter or the end of a line, and a quote
within it is doubled (RFC 4180). Quotes within other cells are letters.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.limits import MAX_LINE_BYTES

QUOTE, LINE_BREAK, COMMA = b'"\n,'
_QUOTED = re.compile(rb'"[^"]*+(?:""[^"]*+)*+("?)')
_PLAIN = re.compile(rb"[^,\n]*+")


@dataclass
class Records:
    """The records at the start of some whole lines.

    Attributes:
        lines: (records,) the line, from 0, that each begins on.
        data: their bytes.
        rest: what follows them: a record that needs more lines.
        open_quotes: lines that begin a record with a quote that is not closed.
        bad_quotes: lines with a closing quote that no delimiter follows.
        inner_quotes: lines with a quote in the middle of a cell.
    """

    lines: Int64s
    data: bytes
    rest: bytes = b""
    open_quotes: list[int] = field(default_factory=list)
    bad_quotes: list[int] = field(default_factory=list)
    inner_quotes: list[int] = field(default_factory=list)


def split_records(data: bytes, *, at_end: bool) -> Records:
    """Split whole lines into records.

    Args:
        data: lines, each with its line feed, and no carriage returns.
        at_end: whether no more lines follow.
    """
    letters = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(letters == LINE_BREAK)
    quotes = np.flatnonzero(letters == QUOTE)
    if not len(quotes):
        return Records(np.arange(len(ends)), data)
    if not _follow_the_rules(letters, quotes):
        return _split_slowly(data, at_end=at_end)
    is_end = np.searchsorted(quotes, ends) % 2 == 0
    if len(quotes) % 2:  # the last record goes on, or its quote is never closed
        last = int(ends[is_end][-1]) + 1 if is_end.any() else 0
        if at_end or len(data) - last > MAX_LINE_BYTES:
            return _split_slowly(data, at_end=at_end)
        data, rest = data[:last], data[last:]
        is_end = is_end[: np.searchsorted(ends, last)]
    else:
        rest = b""
    begins = np.concatenate([[True], is_end[:-1]]) if len(is_end) else is_end
    return Records(np.flatnonzero(begins), data, rest)


def _follow_the_rules(letters: np.ndarray, quotes: Int64s) -> bool:
    """Return whether quotes in turn open a cell and close it, doubled ones within it aside."""
    padded = np.concatenate([[LINE_BREAK], letters, [LINE_BREAK]])
    before, after = padded[quotes], padded[quotes + 2]
    touching = np.diff(quotes) == 1
    opens, closes = slice(0, None, 2), slice(1, None, 2)
    doubled_open = np.concatenate([[False], touching])[opens]
    doubled_close = np.concatenate([touching, [False]])[closes]
    starts = (before == COMMA) | (before == LINE_BREAK)
    stops = (after == COMMA) | (after == LINE_BREAK)
    return bool((starts[opens] | doubled_open).all() and (stops[closes] | doubled_close).all())


def _split_slowly(data: bytes, *, at_end: bool) -> Records:
    """Split lines of which some break the rules; these are left out, each a line alone."""
    found = Records(np.empty(0, dtype=np.int64), b"")
    lines: list[int] = []
    kept: list[bytes] = []
    position = line = 0
    while position < len(data):
        quote = data.find(b'"', position)
        start = len(data) if quote < 0 else max(data.rfind(b"\n", 0, quote) + 1, position)
        stop, inner = (start, False) if quote < 0 else _end_of_record(data, start)
        whole = data.count(b"\n", position, start)
        kept.append(data[position:start])
        lines += range(line, line + whole)
        line, position = line + whole, start
        if stop == _OPEN and not at_end and len(data) - start <= MAX_LINE_BYTES:
            found.rest = data[start:]
            break
        if stop in (_OPEN, _BAD):
            (found.open_quotes if stop == _OPEN else found.bad_quotes).append(line)
            line, position = line + 1, data.index(b"\n", start) + 1
        elif stop > start:
            if inner:
                found.inner_quotes.append(line)
            kept.append(data[start:stop])
            lines.append(line)
            line, position = line + data.count(b"\n", start, stop), stop
    found.lines, found.data = np.array(lines, dtype=np.int64), b"".join(kept)
    return found


_OPEN, _BAD = -1, -2


def _end_of_record(data: bytes, start: int) -> tuple[int, bool]:
    """Return where the record ends that begins at ``start``, and whether cells have quotes within.

    The end is ``_OPEN`` if a quote is not closed, and ``_BAD`` if no delimiter follows one that
    closes a cell.
    """
    position, inner = start, False
    while True:
        if data[position] == QUOTE:
            cell = _QUOTED.match(data, position)
            assert cell
            if not cell[1]:
                return _OPEN, inner
            position = cell.end()
            if data[position] not in (COMMA, LINE_BREAK):
                return _BAD, inner
        else:
            plain = _PLAIN.match(data, position)
            assert plain
            inner |= b'"' in plain[0]
            position = plain.end()
        if data[position] == LINE_BREAK:
            return position + 1, inner
        position += 1
