"""Read a text file as UTF-8, in blocks of whole records and bounded size."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.errors import DatasetError
from ramen_ray.data.store.limits import TooLargeError
from ramen_ray.data.store.utf8 import decoded, whole_lines, without_marks
from ramen_ray.data.tables.reading.faults import EXAMPLES, FEW, Kind
from ramen_ray.data.tables.reading.formats import DELIMITERS, TableFile
from ramen_ray.data.tables.reading.quotes import Records, split_records

BYTES_PER_BLOCK = 16 << 20
MAX_HEADER_BYTES = 1 << 20
EXCERPT_BYTES = 60
MARK = b"\xef\xbb\xbf"
OTHER_FORMATS = {
    b"\xff\xfe\0\0": "is UTF-32; save it as UTF-8",
    b"\0\0\xfe\xff": "is UTF-32; save it as UTF-8",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
    b"\x1f\x8b": "is compressed by gzip; add .gz to its name",
    b"BZh": "is compressed by bzip2; add .bz2 to its name",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; add .zst to its name",
    b"PK\x03\x04": "is a zip archive or an Excel workbook; save the table as CSV",
    b"PAR1": "is parquet; name it .parquet",
}

Found = tuple[Kind, Int64s, list[str]]
"""A kind of fault, the lines (n,) that have it, from 1, and the first of them."""

WINDOWS_1252 = Kind(
    "lines are not UTF-8, and were read as Windows-1252",
    "save the file as UTF-8 if they look wrong",
    severity="warning",
)
STRANGE = Kind(
    "lines are neither UTF-8 nor Windows-1252",
    "save the file as UTF-8 from its own encoding (such as GBK, Shift-JIS or Windows-1251)",
    most=FEW,
)
MARKS = Kind(
    "lines begin with a byte order mark, which was taken off",
    "were files joined? Check the places where they meet",
    severity="warning",
)
INNER_MARKS = Kind(
    "lines have a byte order mark within, which was taken out",
    "were files joined? Check the places where they meet",
    severity="warning",
)
NULS = Kind("lines have NUL bytes", "is the file damaged? Write it again", most=FEW)
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
LONE_RETURN = Kind(
    "carriage returns within lines were read as spaces",
    "end lines with line feeds",
    severity="warning",
)


@dataclass(frozen=True)
class Block:
    """Whole records of a text file, as UTF-8.

    Attributes:
        data: their bytes; blank lines are records too.
        lines: (records,) int64, the line of the file that each begins on, from 1.
        faults: what is wrong with other lines, or likely wrong with these.
    """

    data: bytes
    lines: Int64s
    faults: list[Found]


def read_blocks(file: TableFile) -> Iterator[Block]:
    """Read all records of a text file; of CSV and TSV, the first is the header.

    Raises:
        DatasetError: a line has more than ``MAX_LINE_BYTES``.
    """
    line, rest = 1, b""
    with _open(file) as stream:
        try:
            for data, at_end in _with_end(whole_lines(stream, BYTES_PER_BLOCK)):
                block, rest, line = _block(file.format, rest + data, line, at_end=at_end)
                yield block
        except TooLargeError as error:
            raise error_at(file.path, str(error), row=error.line + 1) from error


def read_header(file: TableFile) -> tuple[str, ...] | None:
    """Return the columns of a text file; none for JSON lines, where each line has its own.

    Returns:
        the columns; None if there is not a single byte of text.

    Raises:
        DatasetError: it is not a text file, or its first line names no columns.
    """
    with _open(file) as stream:
        start = stream.read(MAX_HEADER_BYTES)
    _refuse_other_formats(start)
    if not start.strip(MARK + b"\r\n\t "):
        return None
    if file.format == "jsonl":
        return ()
    text, _ = without_marks(decoded(start + b"\n" * (len(start) < MAX_HEADER_BYTES)).data)
    first = _first_record(file.format, text)
    if first is None:
        raise DatasetError(
            "its first line, which should name the columns, has an open quote, or over"
            f" {MAX_HEADER_BYTES} bytes"
        )
    if not first.strip():
        raise DatasetError("its first line, which should name the columns, is empty")
    if b"\r" in first.rstrip(b"\r\n"):
        raise DatasetError("its lines end with carriage returns alone; save it with line feeds")
    return tuple(read_cells(first, file.format).column_names)


def _refuse_other_formats(start: bytes) -> None:
    for mark, message in OTHER_FORMATS.items():
        if start.startswith(mark):
            raise DatasetError(message)
    if b"\0" in start.partition(b"\n")[0]:
        raise DatasetError("has NUL bytes in its first line, as UTF-16 has; save it as UTF-8")


def read_cells(data: bytes, kind: str) -> pa.Table:
    """Read records of CSV or TSV, of which the first is the header."""
    return pa.csv.read_csv(pa.BufferReader(data), parse_options=parse_options(kind))


def parse_options(
    kind: str, skip: Callable[[pa.csv.InvalidRow], str] | None = None
) -> pa.csv.ParseOptions:
    """Return how CSV is parsed, or TSV, where quotes are letters; ``skip`` takes other rows."""
    return pa.csv.ParseOptions(
        delimiter=DELIMITERS[kind],
        quote_char='"' if kind == "csv" else False,
        newlines_in_values=True,
        invalid_row_handler=skip,
        ignore_empty_lines=False,
    )


def _open(file: TableFile) -> pa.NativeFile:
    return file.filesystem.open_input_stream(file.path, compression=file.compression)


def _with_end(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Tell of each block whether it is the last."""
    before = next(blocks, None)
    for block in blocks:
        assert before is not None
        yield before, False
        before = block
    if before is not None:
        yield before, True


def _block(kind: str, data: bytes, line: int, *, at_end: bool) -> tuple[Block, bytes, int]:
    """Make a block of lines from ``line`` on; returns also the rest, and its first line."""
    text = decoded(data)
    clean, marked = without_marks(text.data)
    inner_marks = [row for row, _ in _lines_with(clean, MARK)]
    clean = clean.replace(MARK, b"")
    returned: list[int] = []
    if b"\r" in clean and kind != "jsonl":
        clean = clean.replace(b"\r\n", b"\n")
        returned = [row for row, content in _lines_with(clean, b"\r")]
        clean = clean.replace(b"\r", b" ")
    if kind == "csv":
        records = split_records(clean, at_end=at_end)
    else:
        records = Records(np.arange(clean.count(b"\n")), clean)
    encoding = WINDOWS_1252 if text.bad_bytes.are_windows_1252 else STRANGE
    found = (
        (encoding, text.damaged_lines),
        (MARKS, [row for row in marked if row or line > 1]),
        (INNER_MARKS, inner_marks),
        (NULS, [row for row, _ in _lines_with(clean, b"\0")]),
        (LONE_RETURN, returned),
        (OPEN_QUOTE, records.open_quotes),
        (BAD_QUOTE, records.bad_quotes),
        (INNER_QUOTE, records.inner_quotes),
    )
    faults = [
        (fault, line + np.array(rows), _excerpts(clean, rows[:EXAMPLES]))
        for fault, rows in found
        if len(rows)
    ]
    after = line + clean.count(b"\n") - records.rest.count(b"\n")
    return Block(records.data, line + records.lines, faults), records.rest, after


def _lines_with(data: bytes, mark: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that have ``mark``, with their numbers from 0."""
    if mark in data:
        yield from (found for found in enumerate(data.split(b"\n")) if mark in found[1])


def _excerpts(data: bytes, rows: Sequence[int]) -> list[str]:
    """Return the starts of some lines, which are numbered from 0."""
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    starts = np.concatenate([[0], ends + 1])
    return [
        data[starts[row] : min(ends[row], starts[row] + EXCERPT_BYTES)].decode(errors="ignore")
        for row in rows
    ]


def _first_record(kind: str, text: bytes) -> bytes | None:
    """Return the first record of a table's beginning; None if it has no end."""
    if kind == "tsv":
        first, line_break, _ = text.partition(b"\n")
        return first + line_break if line_break else None
    whole = text[: text.rfind(b"\n") + 1]
    records = split_records(whole, at_end=False)
    if len(records.lines) == 1:
        return records.data
    if not len(records.lines) or records.lines[0]:
        return None
    return b"".join(whole.splitlines(keepends=True)[: int(records.lines[1])])
