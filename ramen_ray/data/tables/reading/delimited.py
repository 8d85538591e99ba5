"""CSV and TSV: where records begin and end, quotes that break the rules, and cells.

A cell of CSV that begins with a quote ends with one, before a delimiter or the end of a line, and a
quote within it is doubled (RFC 4180). Quotes within other cells, and all those of TSV, are letters.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.findings import MAX_EXAMPLES, FaultKind, error_at
from ramen_ray.data.tables.reading.lines import (
    EXCERPT_LENGTH,
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    Block,
    Found,
    Rows,
)
from ramen_ray.errors import DatasetError

DELIMITERS = {"csv": ",", "tsv": "\t"}

_CELL = rb'(?:"[^"]*+(?:""[^"]*+)*+"(?=[,\n])|(?!")[^,\n]*+)'
_RECORDS = re.compile(rb"(?:%s(?:,%s)*+\n)*+" % (_CELL, _CELL))
_BROKEN_CELL = re.compile(rb'(?:%s,)*+"[^"]*+(?:""[^"]*+)*+"' % _CELL)

BAD_QUOTE = FaultKind(
    "lines have a closing quote that no delimiter follows",
    'write quotes within cells doubled, as "", not as \\"',
)
MANY_LINES = 3
"""A cell with so many line breaks, whose lines all look like rows, is taken for these rows."""
CELLS_ADVICE = {
    "csv": "quote cells that hold the delimiter",
    "tsv": "TSV has no quoting: write cells without tabs and line breaks, or the table as CSV",
}


def header_of(start: str, kind: str) -> tuple[str, ...]:
    """Return the columns of a file that begins with ``start``, or raise a DatasetError."""
    whole = start[: start.rfind("\n") + 1]
    if "\r" in whole.partition("\n")[0]:
        raise DatasetError("its lines end with carriage returns alone; save it with line feeds")
    lines = StringIO(whole, newline="\n")
    try:
        if kind == "csv":
            first = next(csv.reader(lines, strict=True))
        else:
            first = next(lines).removesuffix("\n").split("\t")
    except (csv.Error, StopIteration):
        raise DatasetError(
            "its first line, which should name the columns, has an open quote, or over"
            f" {MAX_HEADER_BYTES} bytes"
        ) from None
    if not "".join(first).strip():
        raise DatasetError("its first line, which should name the columns, is empty")
    return tuple(first)


def read_records(
    blocks: Iterable[Block], path: object, kind: str, header: Sequence[str], columns: Sequence[str]
) -> Iterator[Rows]:
    """Yield some columns of a file's rows as texts, without its header and rows without a letter.

    Raises a DatasetError at a quote that takes lines below it into its cell.
    """
    rest = b""
    line = 1
    for block in blocks:
        data = rest + block.data
        if kind == "csv" and b'"' in data:
            records, broken, end = _whole_records(data, path, line)
        else:
            records = data
            broken = {}
            end = len(data)
        next_line = line + data.count(b"\n", 0, end)
        lines = np.setdiff1d(np.arange(line, next_line), [*broken], assume_unique=True)
        rows = _rows(records, lines, path, kind, header, columns)
        faults = [*block.faults, *rows.faults]
        if broken:
            faults.append((BAD_QUOTE, np.array([*broken]), [*broken.values()]))
        yield Rows(rows.cells, rows.numbers, faults)
        rest = data[end:]
        line = next_line
    if rest:
        raise _takes_lines(path, line)


def _whole_records(data: bytes, path: object, line: int) -> tuple[bytes, dict[int, str], int]:
    """Return the records of whole lines, the lines that break the rules, and where records end."""
    kept = []
    broken: dict[int, str] = {}
    start = 0
    while True:
        stop = _end_of(_RECORDS.match(data, start))
        kept.append(data[start:stop])
        line += data.count(b"\n", start, stop)
        cell = _BROKEN_CELL.match(data, stop)
        may_go_on = not cell and len(data) - stop <= MAX_LINE_BYTES
        if stop == len(data) or may_go_on:
            return b"".join(kept), broken, stop
        if not cell or b"\n" in cell[0]:
            raise _takes_lines(path, line)
        start = data.index(b"\n", stop) + 1
        broken[line] = data[stop : start - 1].decode()[:EXCERPT_LENGTH]
        line += 1


def _end_of(match: re.Match[bytes] | None) -> int:
    return match.end() if match else 0


def _takes_lines(path: object, line: int) -> DatasetError:
    message = "a quote opens a cell that takes in the lines below it"
    advice = 'close it; quotes within cells are doubled, as ""'
    return error_at(path, message, advice=advice, row=line)


def _rows(
    data: bytes,
    lines: Int64s,
    path: object,
    kind: str,
    header: Sequence[str],
    columns: Sequence[str],
) -> Rows:
    """Read the records of ``data``, whose lines in the file are ``lines`` (n,)."""
    names = [str(place) for place in range(len(header))]  # a header may have a name twice
    places = [names[header.index(name)] for name in columns]
    other: list[pa.csv.InvalidRow] = []
    rows = _read(data, kind, names, places, other)
    others = np.array([row.number - 1 for row in other], dtype=np.int64)
    num_records = len(rows) + len(others)
    starts = np.arange(num_records)
    if num_records < len(lines):  # some records have several lines
        breaks = np.zeros(num_records, dtype=np.int64)
        breaks[others] = [row.text.count("\n") for row in other]
        every = _read(data, kind, names, names, [])
        in_cells = [pc.count_substring(column, "\n").to_numpy() for column in every.columns]
        breaks[np.delete(starts, others)] = np.sum(in_cells, axis=0)
        starts += np.cumsum(breaks) - breaks
        many = np.flatnonzero(np.max(in_cells, axis=0) >= MANY_LINES)
        _refuse_rows_in_cells(every.take(many), lines[np.delete(starts, others)][many], path)
    numbers = np.delete(lines[starts], others)
    kept = _are_filled(rows)
    if not kept.all():  # in the columns that were asked for; others may be
        kept = _are_filled(_read(data, kind, names, names, []))
    kept &= numbers > 1  # the header
    rows = rows.filter(pa.array(kept)).rename_columns(columns)
    numbers = numbers[kept]
    faults = [*_other_cells(lines[starts[others]], other, CELLS_ADVICE[kind])]
    return Rows(rows, numbers, faults)


def _read(
    data: bytes,
    kind: str,
    names: Sequence[str],
    wanted: Sequence[str],
    other: list[pa.csv.InvalidRow],
) -> pa.Table:
    """Read some columns as texts; records of another number of cells are put into ``other``."""

    def skip(row: pa.csv.InvalidRow) -> str:
        other.append(row)
        return "skip"

    if not data:
        return pa.table({name: pa.array([], pa.string()) for name in wanted})
    return pa.csv.read_csv(
        pa.BufferReader(data),
        pa.csv.ReadOptions(use_threads=False, block_size=len(data), column_names=names),
        pa.csv.ParseOptions(
            delimiter=DELIMITERS[kind],
            quote_char='"' if kind == "csv" else False,
            newlines_in_values=True,
            invalid_row_handler=skip,
            ignore_empty_lines=False,
        ),
        pa.csv.ConvertOptions(
            include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())
        ),
    )


def _are_filled(rows: pa.Table) -> Booleans:
    """Flag the rows that have a cell that is not empty."""
    return np.any([pc.not_equal(column, "").to_numpy() for column in rows.columns], axis=0)


def _other_cells(lines: Int64s, other: list[pa.csv.InvalidRow], advice: str) -> Iterator[Found]:
    """Say which lines have more or fewer cells than the header, by how many they have."""
    counts = np.array([row.actual_columns if row.text.strip() else 0 for row in other])
    for count in np.unique(counts[counts > 0]).tolist():
        places = np.flatnonzero(counts == count)
        texts = [other[place].text[:EXCERPT_LENGTH] for place in places[:MAX_EXAMPLES]]
        message = f"lines have {count} cells instead of {other[0].expected_columns}"
        yield FaultKind(message, advice), lines[places], texts


def _refuse_rows_in_cells(rows: pa.Table, numbers: Int64s, path: object) -> None:
    """Refuse a record whose lines, without its quotes, are all rows: two quotes are no pair."""
    for number, row in zip(numbers.tolist(), rows.to_pylist(), strict=True):
        counts = {line.count(",") + 1 for line in ",".join(row.values()).split("\n")}
        if counts == {rows.num_columns} != {1}:
            raise _takes_lines(path, number)
