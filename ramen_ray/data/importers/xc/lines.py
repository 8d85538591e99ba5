"""Lines of text files, block by block: texts to Arrow arrays and back, integers to numpy arrays."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from ramen_ray.data.findings import Finding, error_at
from ramen_ray.data.store.limits import TooLargeError
from ramen_ray.data.store.utf8 import BadBytes, decoded, whole_lines, without_marks

BLOCK_BYTES = 1 << 23
MAX_DAMAGED_LINES = 10
MAX_DAMAGED_SHARE = 0.01

_NEWLINE = ord("\n")
_ONE_TOKEN_A_LINE = bytes.maketrans(b" \t\r", b"\n\n\n")
_SPACES = np.isin(np.arange(256), list(b" \t\r\n"))


def line_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Read the lines of a file of the XC repository, block by block.

    Raises:
        DatasetError: a line is too long.
    """
    try:
        yield from whole_lines(stream, BLOCK_BYTES)
    except TooLargeError as error:
        raise error_at(stream.name, str(error), row=error.line + 1) from error


def read_texts(file: Path) -> Iterator[pa.Array]:
    r"""Read one text per line; only ``\n`` and ``\r\n`` end a line.

    Bytes that are not UTF-8 are read as Windows-1252; byte order marks before a text are left out.
    """
    with file.open("rb") as stream:
        for block in line_blocks(stream):
            content, _ = without_marks(decoded(block.replace(b"\r\n", b"\n")).data)
            yield _split_lines(content)


def encoding_findings(file: Path) -> list[Finding]:
    """Say which bytes of a text file are not UTF-8, and where files with marks were joined."""
    first, damaged, marked, bad_bytes = 1, list[int](), list[int](), BadBytes()
    with file.open("rb") as stream:
        for block in line_blocks(stream):
            found, (_, with_marks) = decoded(block), without_marks(block)
            damaged += [first + line for line in found.damaged_lines]
            marked += [first + line for line in with_marks if first + line > 1]
            bad_bytes += found.bad_bytes
            first += block.count(b"\n")
    findings = [_bad_bytes_finding(file, damaged, bad_bytes, first - 1)] if damaged else []
    if marked:
        message = f"{len(marked)} lines begin with a byte order mark, which is left out"
        advice = "check that whole files were joined, in the right order"
        findings.append(Finding("warning", str(file), message, advice, marked[0]))
    return findings


def _bad_bytes_finding(
    file: Path, damaged: list[int], bad_bytes: BadBytes, num_lines: int
) -> Finding:
    place = f"{len(damaged)} of {num_lines} lines are not UTF-8"
    if not bad_bytes.are_windows_1252:
        message = f"{place}, and do not look like Windows-1252 (western European) either"
        advice = "convert the file from its encoding: iconv -f ENCODING -t UTF-8"
        return Finding("error", str(file), message, advice, damaged[0])
    if len(damaged) > max(MAX_DAMAGED_LINES, MAX_DAMAGED_SHARE * num_lines):
        message = f"{place}, too many to be a few damaged ones"
        advice = "convert the file from its encoding: iconv -f WINDOWS-1252 -t UTF-8"
        return Finding("error", str(file), message, advice, damaged[0])
    message = f"{place}; what is not is read as Windows-1252"
    return Finding("warning", str(file), message, "convert the file to UTF-8", damaged[0])


class LineBreakError(ValueError):
    """A text contains a line break; ``line`` is its number, from 0."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def write_texts(file: Path, batches: Iterator[pa.ChunkedArray]) -> None:
    """Write one text per line.

    Raises:
        LineBreakError: a text contains a line break.
    """
    written = 0
    with file.open("wb") as stream:
        for texts in batches:
            broken = pc.match_substring_regex(texts, "[\r\n]").to_numpy()
            if broken.any():
                raise LineBreakError(written + int(broken.argmax()))
            write_lines(stream, texts.combine_chunks())
            written += len(texts)


def write_lines(stream: BinaryIO, lines: pa.Array) -> None:
    """Write strings, each followed by a line break."""
    if len(lines):
        together = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        stream.write(pc.binary_join(together, "\n")[0].as_buffer())
        stream.write(b"\n")


def read_ids(file: Path, limits: tuple[int, ...]) -> NDArray[np.int64]:
    """Read one tuple of ids per line, such as the pairs of a filter file; empty lines are skipped.

    Args:
        file: integers separated by spaces; it may be empty.
        limits: for each column, how many ids there are.

    Returns:
        (lines, len(limits)) int64.

    Raises:
        DatasetError: a line is malformed, or an id is out of range.
    """
    tuples, line = [np.empty((0, len(limits)), dtype=np.int64)], 1
    with file.open("rb") as stream:
        for block in line_blocks(stream):
            counts, columns = parse_tokens(file, block, line, pa.schema([("id", pa.int64())]))
            wrong = np.flatnonzero((counts != 0) & (counts != len(limits)))
            if len(wrong):
                message = f"{counts[wrong[0]]} numbers where {len(limits)} are expected"
                raise error_at(file, message, row=line + int(wrong[0]))
            ids = columns["id"].to_numpy().reshape(-1, len(limits))
            outside = np.argwhere((ids < 0) | (ids >= limits))
            if len(outside):
                which, column = outside[0]
                row = line + int(np.flatnonzero(counts)[which])
                message = f"id {ids[which, column]} is outside 0..{limits[column] - 1}"
                raise error_at(file, message, row=row, column=str(column + 1))
            tuples.append(ids)
            line += len(counts)
    return np.concatenate(tuples)


def parse_tokens(
    file: Path, block: bytes, first_line: int, fields: pa.Schema
) -> tuple[NDArray[np.int64], pa.Table]:
    """Parse numbers that are separated by white space, in groups joined by ``:``.

    Args:
        file: named in errors.
        block: whole lines.
        first_line: number of the block's first line, counted from 1.
        fields: names and types of a token's numbers.

    Returns:
        The number of tokens of each line, (lines,) int64, and a table with a row for each token.

    Raises:
        DatasetError: a token is malformed.
    """
    characters = np.frombuffer(block, dtype=np.uint8)
    is_space = _SPACES[characters]
    starts = np.flatnonzero(~is_space & np.concatenate([[True], is_space[:-1]]))
    ends = np.flatnonzero(characters == _NEWLINE)
    counts = np.diff(np.searchsorted(starts, ends), prepend=0)
    if not len(starts):
        return counts, fields.empty_table()
    try:
        table = csv.read_csv(
            pa.BufferReader(block.translate(_ONE_TOKEN_A_LINE)),
            csv.ReadOptions(column_names=fields.names, block_size=BLOCK_BYTES),
            csv.ParseOptions(delimiter=":", quote_char=False),
            csv.ConvertOptions(column_types=fields, null_values=[]),
        )
    except pa.ArrowInvalid as error:
        raise _bad_token(file, block, first_line, fields) from error
    return counts, table


def _bad_token(file: Path, block: bytes, first_line: int, fields: pa.Schema) -> ValueError:
    """Find the token that could not be parsed by trying one at a time."""
    for number, line in enumerate(block.split(b"\n"), start=first_line):
        for token in line.split():
            numbers = token.split(b":")
            if len(numbers) != len(fields) or not all(map(_is_number, numbers, fields.types)):
                shown = token[:40].decode(errors="replace")
                form = ":".join(fields.names)
                return error_at(file, f"{shown!r} is not {form!r} with numbers", row=number)
    return error_at(file, "a number is too large or badly written", row=first_line)


def _is_number(text: bytes, kind: pa.DataType) -> bool:
    pattern = rb"-?\d{1,18}" if pa.types.is_integer(kind) else rb"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
    return bool(re.fullmatch(pattern, text, re.IGNORECASE))


def _split_lines(block: bytes) -> pa.Array:
    """Make an array of strings of the lines of a block in UTF-8."""
    characters = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(characters == _NEWLINE)
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    without_breaks = np.delete(characters, ends)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(without_breaks)]
    return pa.Array.from_buffers(pa.string(), len(ends), buffers)
