"""CSV and TSV: where records begin and end, quotes that break the rules, and cells.

A cell of CSV that begins with a quote ends with one, before a delimiter or the end of a line, and a
quote within it is doubled (RFC 4180). Quotes within other cells, and all those of TSV, are letters.
"""

import csv
import re
from collections.abc import Iterator
from functools import partial
from io import StringIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.findings import FEW, MAX_EXAMPLES, Kind, error_at
from ramen_ray.data.tables.reading.lines import (
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    Block,
    Found,
    Records,
    Rows,
)
from ramen_ray.errors import DatasetError

DELIMITERS = {"csv": ",", "tsv": "\t"}
QUOTE, LINE_BREAK, COMMA = b'"\n,'


def _records_of(plain: bytes) -> tuple[bytes, re.Pattern[bytes]]:
    """Return patterns of a cell, which is in quotes or ``plain``, and of a record of such cells."""
    cell = rb'(?:"[^"]*+(?:""[^"]*+)*+"(?=[,\n])|%s)' % plain
    return cell, re.compile(rb"%s(?:,%s)*+\n" % (cell, cell))


_, _RECORD = _records_of(rb'[^",\n]*+')
_CELL, _ODD_RECORD = _records_of(rb'(?!")[^,\n]*+')
_BROKEN_CELL = re.compile(rb'(?:%s,)*+"[^"]*+(?:""[^"]*+)*+("?)' % _CELL)

OPEN_QUOTE = Kind("lines begin a record with a quote that is not closed", "close it, or double it")
BAD_QUOTE = Kind(
    "lines have a closing quote that no delimiter follows",
    'write quotes within cells doubled, as "", not as \\"',
)
INNER_QUOTE = Kind(
    "lines have a quote in the middle of a cell, which is kept",
    "check these cells",
    severity="warning",
)
ENOUGH_COMMAS = 3
"""So many, with no space after them, in lines one below the other: texts hardly have these."""
ROWS_IN_A_CELL = Kind(
    "lines look like rows, but are within a cell in quotes",
    "close the quote above them, or leave it out",
    most=FEW,
)
CELLS_ADVICE = {
    "csv": "quote cells that hold the delimiter",
    "tsv": "TSV has no quoting: write cells without tabs and line breaks, or the table as CSV",
}
MANY_QUOTED = 0.9
QUOTED = r'^".*"$'
QUOTED_AS_CSV = r'^".*"".*"$'
KEPT_QUOTES = Kind(
    "lines have cells in quotes, which are kept: TSV has no quoting",
    "leave the quotes out if they are not part of the texts",
    severity="warning",
)
QUOTED_CELLS = Kind(
    "lines have cells in quotes as CSV has them: TSV has no quoting",
    "write the cells as they are, or the table as CSV",
)


def header_of(start: bytes, kind: str) -> tuple[str, ...]:
    """Return the columns of a file that begins with ``start``, or raise a DatasetError."""
    whole = start[: start.rfind(b"\n") + 1]
    if b"\r" in whole.partition(b"\n")[0]:
        raise DatasetError("its lines end with carriage returns alone; save it with line feeds")
    lines = StringIO(whole.decode(), newline="\n")
    try:
        records = csv.reader(
            lines,
            delimiter=DELIMITERS[kind],
            quoting=csv.QUOTE_MINIMAL if kind == "csv" else csv.QUOTE_NONE,
            strict=True,
        )
        first = next(records)
    except (csv.Error, StopIteration):
        raise DatasetError(
            "its first line, which should name the columns, has an open quote, or over"
            f" {MAX_HEADER_BYTES} bytes"
        ) from None
    if not "".join(first).strip():
        raise DatasetError("its first line, which should name the columns, is empty")
    return tuple(first)


def parse_records(
    block: Block, path: object, kind: str, header: tuple[str, ...], columns: list[str]
) -> Rows:
    """Return columns of a block's rows as texts, without the header and lines without a letter."""
    lines = block.lines
    is_first = len(lines) > 0 and lines[0] == 1
    lines = lines[int(is_first) :]
    if not len(lines):
        empty = pa.table({name: pa.array([], pa.string()) for name in columns})
        return Rows(empty, lines, block.faults)
    other: list[pa.csv.InvalidRow] = []
    places = [header.index(name) for name in columns]
    read = partial(_read, block.data, kind, len(header))
    rows = read(places, other).slice(int(is_first)).rename_columns(columns)
    bad = np.array([row.number - 1 - int(is_first) for row in other], dtype=np.int64)
    numbers = np.delete(lines, bad)
    if len(numbers) != len(rows):
        raise error_at(path, "its lines cannot be told apart", row=int(lines[0]))
    faults = [*block.faults, *_other_cells(lines[bad], other, CELLS_ADVICE[kind])]
    if kind == "tsv":
        faults += _quotes_in_tsv(rows, numbers)
    elif block.data.count(b"\n") > len(block.lines):  # a record has several lines
        every = read(list(range(len(header))), []).slice(int(is_first))
        faults += _rows_in_cells(every, numbers)
    filled = _are_filled(rows)
    if not filled.all():  # of the columns that were asked for; others may be
        filled = _are_filled(read(list(range(len(header))), []).slice(int(is_first)))
    return Rows(rows.filter(pa.array(filled)), numbers[filled], faults)


def _read(
    data: bytes, kind: str, num_columns: int, places: list[int], other: list[pa.csv.InvalidRow]
) -> pa.Table:
    """Read some columns, by number, as texts; rows of ``other`` numbers of cells are put there."""

    def skip(row: pa.csv.InvalidRow) -> str:
        other.append(row)
        return "skip"

    names = [str(place) for place in places]
    every = [str(place) for place in range(num_columns)]
    return pa.csv.read_csv(
        pa.BufferReader(data),
        pa.csv.ReadOptions(use_threads=False, block_size=len(data), column_names=every),
        pa.csv.ParseOptions(
            delimiter=DELIMITERS[kind],
            quote_char='"' if kind == "csv" else False,
            newlines_in_values=True,
            invalid_row_handler=skip,
            ignore_empty_lines=False,
        ),
        pa.csv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, pa.string())
        ),
    )


def _are_filled(rows: pa.Table) -> Booleans:
    """Flag the rows that have a cell that is not empty."""
    return np.any([pc.not_equal(column, "").to_numpy() for column in rows.columns], axis=0)


def _other_cells(lines: Int64s, skipped: list[pa.csv.InvalidRow], advice: str) -> Iterator[Found]:
    """Say which lines have more or fewer cells than the header, by how many they have."""
    counts = np.array([row.actual_columns for row in skipped])
    has_text = np.array([bool(row.text.strip()) for row in skipped], dtype=bool)
    for count in np.unique(counts[has_text]).tolist():
        rows = np.flatnonzero((counts == count) & has_text)
        cells = [skipped[row].text[:80] for row in rows[:MAX_EXAMPLES]]
        message = f"lines have {count} cells instead of {skipped[0].expected_columns}"
        yield Kind(message, advice), lines[rows], cells


def _quotes_in_tsv(rows: pa.Table, numbers: Int64s) -> Iterator[Found]:
    """Find lines whose cells are in quotes, each once; they are CSV's if doubled, or nearly all."""
    seen = np.zeros(len(rows), dtype=bool)
    for column in rows.columns:
        quoted = pc.match_substring_regex(column, QUOTED).to_numpy()
        as_csv = pc.match_substring_regex(column, QUOTED_AS_CSV).to_numpy()
        if quoted.sum() > max(FEW, MANY_QUOTED * len(rows)):
            as_csv = quoted
        for kind, flags in ((QUOTED_CELLS, as_csv), (KEPT_QUOTES, quoted & ~as_csv)):
            new = flags & ~seen
            if new.any():
                cells = column.filter(pa.array(new))[:MAX_EXAMPLES].to_pylist()
                yield kind, numbers[new], cells
        seen |= quoted


def _rows_in_cells(rows: pa.Table, numbers: Int64s) -> Iterator[Found]:
    """Find the lines of cells that hold other rows, as between two quotes that are no pair."""
    commas = min(rows.num_columns - 1, ENOUGH_COMMAS)
    if not commas:
        return
    line = rf"\n[^,\n]*(?:,(?:[^ ,\n][^,\n]*)?){{{commas},}}"
    pattern = rf"(?:{line}){{{-(-ENOUGH_COMMAS // commas)}}}\n"
    holds = [pc.match_substring_regex(column, pattern).to_numpy() for column in rows.columns]
    for row in np.flatnonzero(np.any(holds, axis=0)):
        lines = ",".join(column[row].as_py() for column in rows.columns).split("\n")
        # without the quotes, the lines that these are on are rows too
        if {line.count(",") + 1 for line in (lines[0], lines[-1])} == {rows.num_columns}:
            yield ROWS_IN_A_CELL, numbers[row] + np.arange(len(lines)), lines[:MAX_EXAMPLES]


def split_records(data: bytes, at_end: bool) -> Records:
    """Split whole lines of CSV into records; one may need more lines unless it is ``at_end``."""
    letters = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(letters == LINE_BREAK)
    quotes = np.flatnonzero(letters == QUOTE)
    if not len(quotes):
        return Records(np.arange(len(ends)), data)
    if not _follow_the_rules(letters, quotes):
        return _split_slowly(data, at_end)
    is_end = np.searchsorted(quotes, ends) % 2 == 0
    rest = b""
    if len(quotes) % 2:  # the last record goes on, or its quote is never closed
        last = int(ends[is_end][-1]) + 1 if is_end.any() else 0
        if at_end or len(data) - last > MAX_LINE_BYTES:
            return _split_slowly(data, at_end)
        data, rest = data[:last], data[last:]
        is_end = is_end[: np.searchsorted(ends, last)]
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


def _split_slowly(data: bytes, at_end: bool) -> Records:
    """Split lines of which some break the rules; these are left out, each a line alone."""
    faults: dict[Kind, list[int]] = {OPEN_QUOTE: [], BAD_QUOTE: [], INNER_QUOTE: []}
    lines: list[int] = []
    kept: list[bytes] = []
    position = line = 0
    while position < len(data):
        record, fault = _RECORD.match(data, position), None
        if not record:
            record, fault = _ODD_RECORD.match(data, position), INNER_QUOTE
        if not record:
            broken = _BROKEN_CELL.match(data, position)
            fault = BAD_QUOTE if broken and broken[1] else OPEN_QUOTE
            if fault == OPEN_QUOTE and not at_end and len(data) - position <= MAX_LINE_BYTES:
                break
        if fault:
            faults[fault].append(line)
        stop = record.end() if record else data.index(b"\n", position) + 1
        if record:
            kept.append(data[position:stop])
            lines.append(line)
        line += data.count(b"\n", position, stop)
        position = stop
    return Records(np.array(lines, dtype=np.int64), b"".join(kept), data[position:], faults)
