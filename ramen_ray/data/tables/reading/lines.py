"""Read a text file as UTF-8, in blocks of whole records and bounded size."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import FEW, MAX_EXAMPLES, Kind, error_at
from ramen_ray.data.store.same_texts import is_utf8
from ramen_ray.errors import DatasetError

MAX_CELL_BYTES = 1 << 24
MAX_LINE_BYTES = 1 << 26
MIN_STRANGE_BYTES = 4
MAX_STRANGE_SHARE = 0.3  # in Windows-1252, letters beyond ASCII mostly stand alone, or in twos

MARK = b"\xef\xbb\xbf"
_RUNS = re.compile(r"[^\x00-\x7f\udc80-\udcff]*[\udc80-\udcff][^\x00-\x7f]*")
"""Bad bytes and letters around them; a few letters may be bytes of another encoding by chance."""
_UTF8 = re.compile("[^\udc80-\udcff]")
_UNDEFINED = b"\x81\x8d\x8f\x90\x9d"
_RARE = _UNDEFINED + "ƒˆ˜".encode("cp1252")  # as letters of Shift-JIS they are frequent
_PUNCTUATION = "€„…†‡‰‹‘’“”•–—™›\xa0¡£©«®°´·»¿".encode("cp1252")
_AS_WINDOWS_1252 = {
    0xDC00 + byte: chr(byte) if byte in _UNDEFINED else bytes([byte]).decode("cp1252")
    for byte in range(0x80, 0x100)
}

BYTES_PER_BLOCK = 16 << 20
MAX_HEADER_BYTES = 1 << 20
EXCERPT_BYTES = 60
ISO_2022 = b"\x1b$"  # begins Japanese, Chinese or Korean letters that are written in seven bits
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
    b"version https://git-lfs": "only points to a file that Git LFS keeps; run git lfs pull",
    b"<!": "is a web page or XML; save the table itself",
    b"<html": "is a web page; save the table itself",
}

Found = tuple[Kind, Int64s, list[str]]
"""A kind of fault, the lines (n,) that have it, from 1, and the first of them."""

WINDOWS_1252 = Kind(
    "lines are not UTF-8, and were read as Windows-1252",
    "if they look wrong, save the file as UTF-8, and cut no text within a letter",
    severity="warning",
)
STRANGE = Kind(
    "lines are neither UTF-8 nor Windows-1252",
    "save the file as UTF-8 from its own encoding (such as GBK, Shift-JIS or Windows-1251)",
    most=FEW,
)
MARKS = Kind(
    "lines have byte order marks, which were taken out",
    "were files joined? Check the places where they meet",
    severity="warning",
)
LONE_RETURN = Kind(
    "carriage returns within lines were read as spaces",
    "end lines with line feeds",
    severity="warning",
)


@dataclass(frozen=True)
class Records:
    """The records at the start of some whole lines."""

    lines: Int64s  # (records,) the line, from 0, that each begins on
    data: bytes
    rest: bytes = b""  # what follows them: a record that needs more lines
    faults: dict[Kind, list[int]] = field(default_factory=dict)  # lines, which may be left out


@dataclass(frozen=True)
class Block:
    """Whole records of a text file, as UTF-8 without carriage returns; blank lines are some too."""

    data: bytes
    lines: Int64s  # (records,) the line of the file that each begins on, from 1
    faults: list[Found]  # what is wrong with other lines, or likely wrong with these


@dataclass(frozen=True)
class Rows:
    """A batch of a file's rows."""

    cells: pa.Table  # the columns that were asked for; in CSV and TSV strings, in JSON of its types
    numbers: Int64s  # (rows,) in parquet the row, from 0; in text files the line, from 1
    faults: Sequence[Found] = ()  # other lines that could not be read, and doubts about these


def lines_as_records(data: bytes, at_end: bool) -> Records:
    """Take each line as a record."""
    return Records(np.arange(data.count(b"\n")), data)


def read_blocks(
    stream: BinaryIO, path: object, split: Callable[[bytes, bool], Records] = lines_as_records
) -> Iterator[Block]:
    """Read all records of a text file, which ``path`` names in errors, as of too large a line.

    ``split`` finds the records of whole lines; its second argument is whether no more follow.
    """
    line, rest = 1, b""
    for data in chain(whole_lines(stream, path, BYTES_PER_BLOCK), [b""]):
        if not (rest or data):
            break
        clean, found = _as_utf8(rest + data, is_start=line == 1)
        records = split(clean, not data)
        faults = [
            (kind, line + np.array(rows), _excerpts(clean, rows[:MAX_EXAMPLES]))
            for kind, rows in {**found, **records.faults}.items()
            if rows
        ]
        yield Block(records.data, line + records.lines, faults)
        rest = records.rest
        line += clean.count(b"\n") - rest.count(b"\n")


def read_start(stream: BinaryIO) -> bytes | None:
    """Read the first MiB of a text file, as UTF-8; None without text, an error if it is another."""
    start = stream.read(MAX_HEADER_BYTES)
    for mark, message in OTHER_FORMATS.items():
        if start.startswith(mark):
            raise DatasetError(message)
    if b"\0" in start.partition(b"\n")[0]:
        raise DatasetError("has NUL bytes in its first line, as UTF-16 has; save it as UTF-8")
    if not start.strip(MARK + b"\r\n\t "):
        return None
    text, *_ = decoded(start + b"\n" * (len(start) < MAX_HEADER_BYTES))
    return _with_line_feeds(text.replace(MARK, b""))


def _as_utf8(data: bytes, *, is_start: bool) -> tuple[bytes, dict[Kind, list[int]]]:
    """Convert lines to UTF-8 with line feeds alone; returns also which ones, from 0, were odd."""
    text, western, strange = decoded(data)
    text = text.removeprefix(MARK) if is_start else text
    clean = _with_line_feeds(text.replace(MARK, b""))
    return clean.replace(b"\r", b" "), {
        WINDOWS_1252: western,
        STRANGE: _lines_with(text, ISO_2022) + strange,
        MARKS: _lines_with(text, MARK),
        LONE_RETURN: _lines_with(clean, b"\r"),
    }


def _with_line_feeds(data: bytes) -> bytes:
    r"""End lines as Unix does; some programs of Windows end them with ``\r\r\n``."""
    return data.replace(b"\r\r\n", b"\n").replace(b"\r\n", b"\n")


def _lines_with(data: bytes, mark: bytes) -> list[int]:
    """Return the lines that have ``mark``, from 0."""
    if mark not in data:
        return []
    return [row for row, line in enumerate(data.split(b"\n")) if mark in line]


def _excerpts(data: bytes, rows: Sequence[int]) -> list[str]:
    """Return the starts of some lines, which are numbered from 0."""
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    starts = np.concatenate([[0], ends + 1])
    return [
        data[starts[row] : min(ends[row], starts[row] + EXCERPT_BYTES)].decode(errors="ignore")
        for row in rows
    ]


def whole_lines(stream: BinaryIO, path: object, block_bytes: int, line: int = 1) -> Iterator[bytes]:
    r"""Read blocks of whole lines, the last with ``\n`` too; a DatasetError if one is too large."""
    unfinished: list[bytes] = []
    while block := stream.read(block_bytes):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*unfinished, block[:cut]])
            line += block.count(b"\n")
            unfinished = []
        unfinished.append(block[cut:])
        if sum(map(len, unfinished)) > MAX_LINE_BYTES:  # to read it all could kill the process
            message = f"has more than {MAX_LINE_BYTES >> 20} MiB without a line break"
            raise error_at(path, message, row=line)
    if rest := b"".join(unfinished):
        yield rest + b"\n"


def decoded(content: bytes) -> tuple[bytes, list[int], list[int]]:
    """Convert whole lines to UTF-8: what is UTF-8 stays, other bytes are read as Windows-1252.

    Returns also which lines, from 0, have such bytes, if they can be Windows-1252; and which, if
    they cannot: they are GBK, Big5, Shift-JIS, EUC-KR, KOI8 ...
    """
    if is_utf8(content):
        return content, [], []
    damaged = [row for row, line in enumerate(content.split(b"\n")) if not is_utf8(line)]
    text = content.decode("utf-8", "surrogateescape")
    western, strange = (damaged, []) if _can_be_windows_1252(text) else ([], damaged)
    return text.translate(_AS_WINDOWS_1252).encode(), western, strange


def _can_be_windows_1252(escaped: str) -> bool:
    """Say whether bad bytes, which are half surrogates, can be letters of Windows-1252."""
    num_bad = num_strange = 0
    for letters, times in Counter(_RUNS.findall(escaped)).items():
        run = letters.encode("utf-8", "surrogateescape")
        bad = _UTF8.sub("", letters).encode("utf-8", "surrogateescape")
        if any(byte in _UNDEFINED for byte in bad):
            return False
        num_bad += times * len(bad)
        num_strange += times * _count_strange(run, bad)
    return num_strange < MIN_STRANGE_BYTES or num_strange < MAX_STRANGE_SHARE * num_bad


def _count_strange(run: bytes, bad: bytes) -> int:
    """Count strange bytes in a run: all of it, or those that are rare anywhere."""
    letters = set(run.translate(None, _PUNCTUATION))
    if len(run) >= 3 and len(letters) >= 2 and 2 * len(bad) >= len(run):
        return len(run)
    return sum(byte in _RARE for byte in bad)
