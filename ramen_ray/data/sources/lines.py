"""Read the lines of a text file's piece, a bounded number of bytes at a time, as UTF-8."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyarrow.fs import FileSystem

from ramen_ray.data.findings import Finding
from ramen_ray.data.sources import pieces
from ramen_ray.data.sources.pieces import Piece, delimiter_of
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.limits import MAX_LINE_BYTES, TOO_LONG, TooLargeError
from ramen_ray.data.store.utf8 import decoded, whole_lines

BYTES_PER_SEARCH = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a text file, as UTF-8; ``first_line`` counts from 1 in the piece."""

    data: bytes
    first_line: int
    findings: list[Finding]


def read_chunks(piece: Piece) -> Iterator[Chunk]:
    """Read the lines that start within a piece, a bounded number of bytes at a time.

    Raises:
        TooLargeError: a line has more than ``MAX_LINE_BYTES``; its number is counted in the piece.
    """
    compressed = piece.stop < 0
    if compressed:
        with piece.filesystem.open_input_stream(piece.path, compression="detect") as stream:
            yield from _checked(piece, whole_lines(stream, pieces.BYTES_PER_PIECE))
        return
    with piece.filesystem.open_input_file(piece.path) as file:
        first = max(piece.start - 1, 0)  # a line starts in the piece if its line break is before
        data = file.read_at(piece.stop - first, first)
        if piece.start:
            data = data[data.find(b"\n") + 1 or len(data) :]
        if data and not data.endswith(b"\n"):
            file.seek(piece.stop)
            data += _rest_of_line(file, data.count(b"\n"))
    yield from _checked(piece, [data])


def first_byte(piece: Piece) -> int:
    """Return the byte from which a piece counts its lines; rows of parquet count from the first."""
    return 0 if piece.format == "parquet" else piece.start


def located(findings: Iterable[Finding], of_pieces: Iterable[Piece]) -> list[Finding]:
    """Count the rows of findings from the start of their file, which is read once for all of them.

    Args:
        findings: what is wrong, counted in pieces.
        of_pieces: these pieces, among others.
    """
    findings = list(findings)
    starts: dict[str, set[int]] = {}
    for finding in findings:
        if finding.start:
            starts.setdefault(finding.file, set()).add(finding.start)
    filesystems = {piece.path: piece.filesystem for piece in of_pieces if piece.path in starts}
    before = {path: _lines_before(filesystems[path], path, starts[path]) for path in starts}
    return [
        replace(finding, row=(finding.row or 0) + before[finding.file][finding.start], start=0)
        if finding.start
        else finding
        for finding in findings
    ]


def _lines_before(filesystem: FileSystem, path: str, starts: Iterable[int]) -> dict[int, int]:
    """Count the lines before pieces that start at some bytes, which are not 0."""
    found, count = {}, 0
    with filesystem.open_input_file(path) as file:
        for start in sorted(starts):
            data = b""
            while (left := start - file.tell()) > 0:
                data = file.read(min(left, pieces.BYTES_PER_PIECE))
                count += data.count(b"\n")
            found[start] = count + (not data.endswith(b"\n"))
    return found


def _rest_of_line(file: pa.NativeFile, line: int) -> bytes:
    parts: list[bytes] = []
    while data := file.read(BYTES_PER_SEARCH):
        rest, line_break, _ = data.partition(b"\n")
        parts.append(rest)
        if line_break:
            break
        if len(parts) * BYTES_PER_SEARCH > MAX_LINE_BYTES:
            raise TooLargeError(TOO_LONG, line)
    return b"".join(parts) + b"\n"


def _checked(piece: Piece, parts: Iterable[bytes]) -> Iterator[Chunk]:
    line = 1
    for data in parts:
        if data.count(b'"') % 2 and piece.format != "jsonl":
            _refuse_open_quote(piece, data, line)
        found = decoded(data)
        text, damaged = found.data, len(found.damaged_lines)
        if not piece.start and line == 1:
            text = text.removeprefix(BYTE_ORDER_MARK)
        if data.strip():
            yield Chunk(text, line, [_windows_1252(piece, damaged)] if damaged else [])
        line += data.count(b"\n")


def _refuse_open_quote(piece: Piece, data: bytes, line: int) -> None:
    """Refuse a quote at the start of a cell that is never closed; other quotes are just characters.

    Raises:
        DatasetError: there is such a quote.
    """
    start = rf'(?:\A|[{delimiter_of(piece.format)}\n])"[^"]*+(?:""[^"]*+)*+("?)'
    for cell in re.finditer(start.encode(), data):
        if not cell[1]:
            line += data[: cell.start() + 1].count(b"\n")
            message = (
                "a quote is not closed, or a cell with line breaks crosses the end of a piece "
                f"(large files are read in pieces of {pieces.BYTES_PER_PIECE >> 20} MiB)"
            )
            advice = "close it, or remove line breaks within cells, or write the table as parquet"
            raise bad_line(piece, line, message, advice=advice)


def bad_line(
    piece: Piece, line: int, message: str, column: str | None = None, advice: str = ""
) -> DatasetError:
    """Return the exception that reports a line, counted from 1 in its piece."""
    found = Finding("error", piece.path, message, advice, line, column, first_byte(piece))
    return DatasetError(str(*located([found], [piece])))


def _windows_1252(piece: Piece, damaged: int) -> Finding:
    return Finding(
        "warning",
        piece.path,
        f"{damaged} lines are not UTF-8 and were read as Windows-1252",
        "save the file as UTF-8 if they look wrong",
    )
