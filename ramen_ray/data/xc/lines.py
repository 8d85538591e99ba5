"""Lines of text files, block by block: numbers read, texts written."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from ramen_ray.data.findings import error_at
from ramen_ray.data.store.limits import TooLargeError
from ramen_ray.data.store.utf8 import whole_lines

BLOCK_BYTES = 1 << 23

_NEWLINE = ord("\n")
_ONE_TOKEN_A_LINE = bytes.maketrans(b" \t\r", b"\n\n\n")
_SPACES = np.isin(np.arange(256), list(b" \t\r\n"))


def line_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Read the lines of a file, block by block; raises a DatasetError if one is too long."""
    try:
        yield from whole_lines(stream, BLOCK_BYTES)
    except TooLargeError as error:
        raise error_at(stream.name, str(error), row=error.line + 1) from error


class LineBreakError(ValueError):
    """A text contains a line break; ``line`` is its number, from 0."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def write_texts(file: Path, batches: Iterator[pa.Array]) -> None:
    """Write one text per line; raises a LineBreakError if it contains a line break."""
    written = 0
    with file.open("wb") as stream:
        for texts in batches:
            broken = np.asarray(pc.match_substring_regex(texts, "[\r\n]"))
            if broken.any():
                raise LineBreakError(written + int(broken.argmax()))
            write_lines(stream, texts)
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
