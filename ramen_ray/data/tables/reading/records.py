"""Text files as streams of records: a row's cells, and the line that it begins on.

A cell of CSV that begins with a quote ends with one, before a delimiter or the end of a line, and a
quote within it is doubled (RFC 4180). Quotes within other cells, and all those of TSV, are letters.
JSON lines have an object on each line. Python's parser, given a block of lines as one list, takes
less time than Arrow's.
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.findings import MAX_EXAMPLES, FaultKind, error_at
from ramen_ray.errors import DatasetError, first_line_of

MAX_LINE_BYTES = 1 << 26
BYTES_PER_BLOCK = 16 << 20
EXCERPT_LENGTH = 60
MARK = "\ufeff"
ENCODING_ADVICE = "save it as UTF-8, or name its encoding, as in --encoding windows-1252"
DELIMITERS = {"csv": ",", "tsv": "\t"}
CELLS_ADVICE = {
    "csv": "quote cells that hold the delimiter",
    "tsv": "TSV has no quoting: write cells without tabs and line breaks, or the table as CSV",
}
MANY_LINES = 3
"""A cell with so many line breaks, whose lines all look like rows, is taken for these rows."""
MARKS = FaultKind(
    "lines have byte order marks, which were taken out",
    "were files joined? Check the places where they meet",
    severity="warning",
)
BAD_QUOTE = FaultKind(
    "lines have a closing quote that no delimiter follows",
    'write quotes within cells doubled, as "", not as \\"',
)

_CELL = rb'(?:"[^"]*+(?:""[^"]*+)*+"(?=[,\n])|(?!")[^,\n]*+)'
_RECORDS = re.compile(rb"(?:%s(?:,%s)*+\n)*+" % (_CELL, _CELL))
_BROKEN_CELL = re.compile(rb'(?:%s,)*+"[^"]*+(?:""[^"]*+)*+"' % _CELL)
_KINDS = {str: "text", int: "a number", float: "a number", type(None): ""}
OTHER_KIND = "neither text nor a number"

Found = tuple[FaultKind, Int64s, Sequence[str]]
"""A kind of fault, the lines (n,) that have it, from 1, and the first of them."""


@dataclass(frozen=True)
class Rows:
    """A batch of a file's rows."""

    cells: pa.Table  # the columns that were asked for; in CSV and TSV strings, in JSON of its types
    numbers: Int64s  # (rows,) in parquet the row, from 0; in text files the line, from 1
    faults: Sequence[Found] = ()  # of other lines, or if only a warning also of these


@dataclass(frozen=True)
class Block:
    """Whole lines of a text file, as UTF-8 with line feeds alone."""

    data: bytes
    line: int  # the file's line, from 1, that it begins with
    faults: Sequence[Found]


def read_blocks(stream: BinaryIO, path: object, encoding: str) -> Iterator[Block]:
    """Read all lines of a text file, which ``path`` names in errors.

    Raises a DatasetError at a line that is not of the encoding, or is too large.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    unfinished = ""
    content = b"\0"
    while content:
        content = stream.read(BYTES_PER_BLOCK)
        try:
            text = unfinished + decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            message = f"{error.object[error.start : error.end]!r} is not {encoding.upper()}"
            raise error_at(path, message, advice=ENCODING_ADVICE, row=line) from None
        if text and not content:
            text += "\n"
        end = text.rfind("\n") + 1
        if end:
            yield _block(text[:end], line)
        line += text.count("\n")
        unfinished = text[end:]
        if len(unfinished) > MAX_LINE_BYTES:  # to read it all could kill the process
            message = f"has more than {MAX_LINE_BYTES >> 20} MiB without a line break"
            raise error_at(path, message, row=line)


def _block(text: str, line: int) -> Block:
    """Take out what is no text, and say where it was."""
    text = text.removeprefix(MARK) if line == 1 else text
    faults: list[Found] = []
    if MARK in text:
        lines = text.split("\n")
        places = [place for place, content in enumerate(lines) if MARK in content]
        excerpts = [lines[place].replace(MARK, "")[:EXCERPT_LENGTH] for place in places]
        faults.append((MARKS, line + np.array(places), excerpts))
    clean = with_line_feeds(text.replace(MARK, ""))
    return Block(clean.replace("\r", " ").encode(), line, faults)


def with_line_feeds(text: str) -> str:
    r"""End lines as Unix does; some programs of Windows end them with ``\r\r\n``."""
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n")


def read_records(
    blocks: Iterator[Block], path: object, kind: str, header: Sequence[str], columns: Sequence[str]
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
        stop = next(_RECORDS.finditer(data, start)).end()
        kept.append(data[start:stop])
        line += data.count(b"\n", start, stop)
        cell = _BROKEN_CELL.match(data, stop)
        if not cell and len(data) - stop <= MAX_LINE_BYTES:  # its end may come
            return b"".join(kept), broken, stop
        if not cell or b"\n" in cell[0]:
            raise _takes_lines(path, line)
        start = data.index(b"\n", stop) + 1
        broken[line] = data[stop : start - 1].decode()[:EXCERPT_LENGTH]
        line += 1


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
    other: list[pa.csv.InvalidRow] = []
    rows = _read(data, kind, names, [names[header.index(name)] for name in columns], other)
    others = np.array([row.number - 1 for row in other], dtype=np.int64)
    starts = np.arange(len(rows) + len(others))
    has_long_records = len(starts) < len(lines)
    every = rows
    if has_long_records or not _are_filled(rows).all():  # other columns may be filled
        every = _read(data, kind, names, names, [])
    if has_long_records:
        breaks = np.zeros(len(starts), dtype=np.int64)
        breaks[others] = [row.text.count("\n") for row in other]
        in_cells = [pc.count_substring(column, "\n").to_numpy() for column in every.columns]
        breaks[np.delete(starts, others)] = np.sum(in_cells, axis=0)
        starts += np.cumsum(breaks) - breaks
    numbers = np.delete(lines[starts], others)
    if has_long_records:
        many = np.flatnonzero(np.max(in_cells, axis=0) >= MANY_LINES)
        _refuse_rows_in_cells(every.take(many), numbers[many], path)
    kept = _are_filled(every) & (numbers > 1)  # 1 is the header
    faults = [*_other_cells(lines[starts[others]], other, CELLS_ADVICE[kind])]
    return Rows(rows.filter(pa.array(kept)).rename_columns(columns), numbers[kept], faults)


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


def parse_objects(block: Block, path: object, columns: Sequence[str]) -> Rows:
    """Return some fields of the objects of a block of lines; what an object lacks is null.

    Raises a DatasetError if a line is no object, a cell is of another kind than above it, or no
    line of the first block has a field.
    """
    contents = block.data.split(b"\n")
    filled = [place for place, content in enumerate(contents) if content.strip()]
    lines = block.line + np.array(filled, dtype=np.int64)
    contents = [contents[place] for place in filled]
    try:
        objects = _parse(b"[%s]" % b",".join(contents))
        is_whole = len(objects) == len(lines) and all(type(item) is dict for item in objects)
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        objects = [_object(*of_line, path) for of_line in zip(contents, lines, strict=True)]
    if block.line == 1 and objects:
        fields = dict.fromkeys(name for item in objects for name in item)
        if missing := [repr(name) for name in columns if name not in fields]:
            they_have = f"they have {', '.join(fields)}"
            raise DatasetError(f"{path}: the lines have no {', '.join(missing)}; {they_have}")
    rows = {
        name: _column(name, [item.get(name) for item in objects], lines, path) for name in columns
    }
    return Rows(pa.table(rows), lines, block.faults)


def _parse(text: bytes) -> Any:
    # pandas' cells of nothing, which Python writes as NaN
    return json.loads(text, parse_constant=lambda _: None)


def _object(content: bytes, line: int, path: object) -> dict[str, Any]:
    why: object = "it is another value"
    try:
        item = _parse(content)
        if isinstance(item, dict):
            return item
    except ValueError as error:
        why = error
    except RecursionError:
        why = "it is nested too deep"
    message = f"is not a JSON object ({why}); write one object per line"
    raise error_at(path, message, row=int(line))


def _column(name: str, cells: list[Any], lines: Int64s, path: object) -> pa.Array:
    """Return cells as texts or numbers; refuses the first that is neither, or of another kind."""
    kinds = [_KINDS.get(type(cell), OTHER_KIND) for cell in cells]
    first = next(filter(None, kinds), "")
    wrong = [
        place for place, kind in enumerate(kinds) if kind == OTHER_KIND or kind not in ("", first)
    ]
    if wrong:
        place = wrong[0]
        above = f"; above it is {first}" if kinds[place] != first else ""
        message = f"{repr(cells[place])[:60]} is {kinds[place]}{above}"
        raise error_at(path, message, row=int(lines[place]), column=name)
    try:
        column = pa.array(cells)
    except OverflowError:  # whole numbers of more than 64 bits keep their digits as texts
        column = pa.array([None if cell is None else str(cell) for cell in cells])
    except (ValueError, pa.ArrowException) as error:
        if len(cells) > 1:  # the one that has it
            for place, cell in enumerate(cells):
                _column(name, [cell], lines[place:], path)
        message = f"{repr(cells[0])[:60]} is wrong: {first_line_of(error)}"
        raise error_at(path, message, row=int(lines[0]), column=name) from None
    return column.cast(pa.string()) if column.type == pa.null() else column
