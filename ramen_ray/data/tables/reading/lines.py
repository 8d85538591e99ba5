"""Read a text file in blocks of whole lines, as UTF-8 with line feeds alone."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import FaultKind, error_at
from ramen_ray.errors import DatasetError

MAX_LINE_BYTES = 1 << 26
BYTES_PER_BLOCK = 16 << 20
MAX_HEADER_BYTES = 1 << 20
EXCERPT_LENGTH = 60
MARK = "\ufeff"
OTHER_FORMATS = {
    b"\x1f\x8b": "is compressed by gzip; add .gz to its name",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; add .zst to its name",
    b"PK\x03\x04": "is a zip archive or an Excel workbook; save the table as CSV",
    b"PAR1": "is parquet; name it .parquet",
    b"version https://git-lfs": "only points to a file that Git LFS keeps; run git lfs pull",
    b"<!": "is a web page or XML; save the table itself",
    b"<html": "is a web page; save the table itself",
}

ENCODING_ADVICE = "save it as UTF-8, or name its encoding, as in --encoding windows-1252"

Found = tuple[FaultKind, Int64s, Sequence[str]]
"""A kind of fault, the lines (n,) that have it, from 1, and the first of them."""

MARKS = FaultKind(
    "lines have byte order marks, which were taken out",
    "were files joined? Check the places where they meet",
    severity="warning",
)


@dataclass(frozen=True)
class Block:
    """Whole lines of a text file, as UTF-8."""

    data: bytes
    line: int  # the file's line, from 1, that it begins with
    faults: Sequence[Found] = ()


@dataclass(frozen=True)
class Rows:
    """A batch of a file's rows."""

    cells: pa.Table  # the columns that were asked for; in CSV and TSV strings, in JSON of its types
    numbers: Int64s  # (rows,) in parquet the row, from 0; in text files the line, from 1
    faults: Sequence[Found] = ()  # of other lines, or if only a warning also of these


def check_encoding(name: str) -> None:
    """Raise a DatasetError if Python has no encoding of texts of this name."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):
        raise DatasetError(
            f"encoding {name!r} is not known; write it as utf-8, windows-1252 or shift_jis"
        ) from None


def read_blocks(stream: BinaryIO, path: object, encoding: str) -> Iterator[Block]:
    """Read all lines of a text file, which ``path`` names in errors.

    Raises a DatasetError at a line that is not of the encoding, or is too large.
    """
    line = 1
    unfinished: list[str] = []
    for text in _decoded(stream, path, encoding):
        cut = text.rfind("\n") + 1
        if cut:
            yield _block("".join([*unfinished, text[:cut]]), line)
            line += text.count("\n")
            unfinished = []
        unfinished.append(text[cut:])
        if sum(map(len, unfinished)) > MAX_LINE_BYTES:  # to read it all could kill the process
            message = f"has more than {MAX_LINE_BYTES >> 20} MiB without a line break"
            raise error_at(path, message, row=line)
    if rest := "".join(unfinished):
        yield _block(rest + "\n", line)


def read_start(stream: BinaryIO, encoding: str) -> str | None:
    """Read the first MiB of a text file; None without text, an error if it is another format."""
    start = stream.read(MAX_HEADER_BYTES)
    for mark, message in OTHER_FORMATS.items():
        if start.startswith(mark):
            raise DatasetError(message)
    # who reads all of it says where it is not of the encoding
    text = codecs.getincrementaldecoder(encoding)("replace").decode(start)
    if "\ufffd" in text.partition("\n")[0]:
        raise DatasetError(f"its first line is not {encoding.upper()}; {ENCODING_ADVICE}")
    text = _with_line_feeds(text.replace(MARK, ""))
    return text + "\n" * (len(start) < MAX_HEADER_BYTES) if text.strip("\n\t ") else None


def _decoded(stream: BinaryIO, path: object, encoding: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    block = b"\0"
    while block:
        block = stream.read(BYTES_PER_BLOCK)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            message = f"{error.object[error.start : error.end]!r} is not {encoding.upper()}"
            raise error_at(path, message, advice=ENCODING_ADVICE, row=line) from None
        yield text
        line += text.count("\n")


def _block(text: str, line: int) -> Block:
    """Take out what is no text, and say where it was."""
    text = text.removeprefix(MARK) if line == 1 else text
    clean = _with_line_feeds(text.replace(MARK, ""))
    return Block(clean.replace("\r", " ").encode(), line, [*_marked(text, line)])


def _with_line_feeds(text: str) -> str:
    r"""End lines as Unix does; some programs of Windows end them with ``\r\r\n``."""
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n")


def _marked(text: str, line: int) -> Iterator[Found]:
    if MARK in text:
        lines = text.split("\n")
        places = [place for place, content in enumerate(lines) if MARK in content]
        excerpts = [lines[place].replace(MARK, "")[:EXCERPT_LENGTH] for place in places]
        yield MARKS, line + np.array(places), excerpts
