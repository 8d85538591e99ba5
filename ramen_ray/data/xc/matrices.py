"""Sparse matrices and lists of ids as the XC repository writes them: text, or scipy's npz.

The text form has a first line ``rows columns``, then for each row a line ``index:value index:value
...``, indices ascending from 0. ``#`` starts a comment; a few empty rows at the end may be absent.
"""

import logging
import re
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv
from scipy.sparse import csr_array, load_npz

from ramen_ray.data.arrays import Booleans, Int64s, to_lists
from ramen_ray.data.findings import Finding, error_at
from ramen_ray.data.tables.reading.lines import whole_lines

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 23
ROWS_AT_ONCE = 1 << 16
MAX_HEADER_BYTES = 1000
MAX_ABSENT_SHARE = 0.05

_IDS = pa.schema([("id", pa.int64())])
_ENTRIES = pa.schema([("index", pa.int64()), ("value", pa.float32())])
_PATTERNS = {pa.int64(): rb"-?\d{1,18}", pa.float32(): rb"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"}
_ONE_TOKEN_A_LINE = bytes.maketrans(b" \t\r", b"\n\n\n")
_SPACES = np.isin(np.arange(256), list(b" \t\r\n"))


def read_shape(file: Path) -> tuple[int, int]:
    """Return the numbers of rows and columns that a matrix declares."""
    if file.suffix == ".npz":
        return _load_npz(file).shape
    with file.open("rb") as stream:
        line = stream.readline(MAX_HEADER_BYTES)
    if found := re.fullmatch(rb"\s*(\d{1,18})\s+(\d{1,18})\s*", line.split(b"#")[0]):
        return int(found[1]), int(found[2])
    shown = line[:40].decode(errors="replace").strip()
    message = f"the first line is {shown!r}, not the two whole numbers 'rows columns'"
    raise error_at(file, message, row=1)


def read_matrix(file: Path, shape: tuple[int, int]) -> csr_array:
    """Read a matrix of positive float32 numbers, of this shape; indices ascend within a row.

    Raises a DatasetError that names row and column if the file, its shape or an entry is wrong.
    """
    npz = _load_npz(file) if file.suffix == ".npz" else None
    found = read_shape(file) if npz is None else npz.shape
    if found != shape:
        raise error_at(
            file,
            f"has {found[0]} rows and {found[1]} columns, but there are {shape[0]} and"
            f" {shape[1]} texts",
            advice="it needs a row and a column for each line of the two text files",
        )
    if npz is None:
        return _read_text(file, shape)
    npz.sort_indices()
    return build_matrix(file, (np.diff(npz.indptr), npz.indices, npz.data), shape, first_row=0)


def read_ids(file: Path, limits: tuple[int, ...]) -> Int64s:
    """Read one tuple of ids per line, such as a filter pair, or none; (tuples, columns) int64.

    Raises a DatasetError if a line is malformed, or an id not below its column's of ``limits``.
    """
    with file.open("rb") as stream:
        counts, tokens = _read_tokens(file, stream, 1, _IDS)
    lines = np.flatnonzero(counts)
    wrong = lines[counts[lines] != len(limits)]
    if len(wrong):
        message = f"{counts[wrong[0]]} numbers where {len(limits)} are expected"
        raise error_at(file, message, row=int(wrong[0]) + 1)
    ids = tokens["id"].to_numpy().reshape(-1, len(limits))
    outside = np.argwhere((ids < 0) | (ids >= limits))
    if len(outside):
        row, column = outside[0]
        message = f"id {ids[row, column]} is outside 0..{limits[column] - 1}"
        raise error_at(file, message, row=int(lines[row]) + 1, column=str(column + 1))
    return ids


def build_matrix(
    file: Path,
    entries: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    shape: tuple[int, int],
    first_row: int,
) -> csr_array:
    """Check a matrix's entries and build it, in float32.

    Raises a DatasetError if an index is out of range, repeated or out of order, or a value is not a
    positive finite number; it names ``file`` and the row, counted from ``first_row``.
    """
    lengths, indices, values = entries  # the first (rows,), the others (entries,)
    with np.errstate(over="ignore"):  # what is too large is refused as infinite
        values = values.astype(np.float32)
    rows = np.repeat(np.arange(len(lengths)), lengths)

    def refuse(bad: Booleans, message: str) -> None:
        if bad.any():
            at = int(bad.argmax())
            row, column = int(rows[at]) + first_row, str(indices[at])
            raise error_at(file, message.format(values[at]), row=row, column=column)

    in_same_row = rows[1:] == rows[:-1]
    steps = np.diff(indices)
    refuse((indices < 0) | (indices >= shape[1]), f"the index is outside 0..{shape[1] - 1}")
    refuse(in_same_row & (steps == 0), "the index occurs twice in its row")
    refuse(in_same_row & (steps < 0), "a smaller index follows; indices must ascend")
    refuse(~np.isfinite(values) | (values <= 0), "the value {} is not a positive finite number")
    return csr_array((values, indices, np.concatenate([[0], np.cumsum(lengths)])), shape=shape)


def write_matrix(file: Path, matrix: csr_array) -> None:
    """Write a matrix as text, with enough digits to restore each float32."""
    with file.open("wb") as stream:
        stream.write("{} {}\n".format(*matrix.shape).encode())
        for start in range(0, matrix.shape[0], ROWS_AT_ONCE):
            rows = matrix[start : start + ROWS_AT_ONCE]
            indices = pa.array(rows.indices).cast(pa.string())
            values = pa.array(rows.data.astype(np.float32)).cast(pa.string())
            entries = pc.binary_join_element_wise(indices, values, ":")
            write_lines(stream, pc.binary_join(to_lists(entries, np.diff(rows.indptr)), " "))


def write_lines(stream: BinaryIO, lines: pa.Array) -> None:
    """Write strings, each followed by a line break."""
    if len(lines):
        together = pc.binary_join(to_lists(lines, np.array([len(lines)])), "\n")
        stream.write(together[0].as_buffer())
        stream.write(b"\n")


def _read_text(file: Path, shape: tuple[int, int]) -> csr_array:
    with file.open("rb") as stream:
        stream.seek(-1, SEEK_END)
        is_whole = stream.read() == b"\n"
        stream.seek(0)
        stream.readline()
        lengths, tokens = _read_tokens(file, stream, 2, _ENTRIES)
    num_rows, num_found = shape[0], len(lengths)
    surplus = np.flatnonzero(lengths[num_rows:])
    if len(surplus):
        row = int(surplus[0]) + num_rows + 2
        raise error_at(file, f"there are more rows than the {num_rows} of the header", row=row)
    missing = max(num_rows - num_found, 0)
    if missing and (not is_whole or missing > MAX_ABSENT_SHARE * num_rows):
        within = "" if is_whole else ", and its last line has no end"
        message = f"it ends after {num_found} of the {num_rows} rows of its header{within}"
        cut = (
            "it was cut off: copy it again; if the other rows are empty, add an empty line for each"
        )
        raise error_at(file, message, advice=cut, row=num_found + 1)
    message = f"the last {missing} of {num_rows} rows are absent and count as empty"
    if not missing:
        message = "its last line has no end: was the file cut off?"
    if missing or not is_whole:
        row = num_found + 1 + bool(missing)
        log.warning(Finding("warning", str(file), message, row=row))
    lengths = np.pad(lengths[:num_rows], (0, missing))
    entries = lengths, tokens["index"].to_numpy(), tokens["value"].to_numpy()
    return build_matrix(file, entries, shape, first_row=2)


def _read_tokens(
    file: Path, stream: BinaryIO, line: int, fields: pa.Schema
) -> tuple[Int64s, pa.Table]:
    """Read groups of numbers that ``:`` joins: how many a line (lines,) has, and a row for each."""
    counts, tables = [np.empty(0, np.int64)], [fields.empty_table()]
    for block in whole_lines(stream, file, BLOCK_BYTES, line):
        numbers = re.sub(rb"#[^\n]*", b"", block)
        counts.append(_count_tokens(numbers))
        if counts[-1].any():
            tables.append(_parse_tokens(file, numbers, line, fields))
        line += len(counts[-1])
    return np.concatenate(counts), pa.concat_tables(tables)


def _count_tokens(block: bytes) -> Int64s:
    """Count the tokens (lines,) of each line."""
    characters = np.frombuffer(block, dtype=np.uint8)
    is_space = _SPACES[characters]
    starts = np.flatnonzero(~is_space & np.concatenate([[True], is_space[:-1]]))
    ends = np.flatnonzero(characters == ord("\n"))
    return np.diff(np.searchsorted(starts, ends), prepend=0)


def _parse_tokens(file: Path, block: bytes, line: int, fields: pa.Schema) -> pa.Table:
    try:
        return csv.read_csv(
            pa.BufferReader(block.translate(_ONE_TOKEN_A_LINE)),
            csv.ReadOptions(column_names=fields.names, block_size=BLOCK_BYTES),
            csv.ParseOptions(delimiter=":", quote_char=False),
            csv.ConvertOptions(column_types=fields, null_values=[]),
        )
    except pa.ArrowInvalid:  # does not say where: try one token at a time
        pattern = b":".join(_PATTERNS[kind] for kind in fields.types)
        for number, tokens in enumerate(block.split(b"\n"), start=line):
            for token in tokens.split():
                if not re.fullmatch(pattern, token):
                    shown, form = token[:40].decode(errors="replace"), ":".join(fields.names)
                    message = f"{shown!r} is not {form!r} with numbers"
                    raise error_at(file, message, row=number) from None
        raise error_at(file, "a number is too large or badly written", row=line) from None


def _load_npz(file: Path) -> Any:
    try:
        matrix = load_npz(file)
        usable = matrix.format == "csr" and matrix.ndim == 2 and matrix.dtype.kind in "biuf"
        if usable:
            matrix.check_format(full_check=False)
    except Exception as error:  # the zip, npy and scipy readers raise many types on damaged files
        raise error_at(file, f"is not a sparse matrix that scipy can read: {error}") from error
    if not usable:
        kind = f"{matrix.ndim}-dimensional {matrix.format} matrix of {matrix.dtype}"
        advice = "save it with scipy.sparse.save_npz(file, matrix.tocsr())"
        message = f"is a {kind}, not a 2-dimensional csr matrix of numbers"
        raise error_at(file, message, advice=advice)
    backwards = np.flatnonzero(np.diff(matrix.indptr) < 0)
    if len(backwards):
        raise error_at(file, "the row ends before it starts", row=int(backwards[0]))
    return matrix
