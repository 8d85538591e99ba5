"""Sparse matrices as the extreme classification repository writes them: text, or scipy's npz.

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
from scipy import sparse

from ramen_ray.data.findings import Finding, error_at
from ramen_ray.data.xc.lines import line_blocks, parse_tokens, write_lines

log = logging.getLogger(__name__)

_ENTRIES = pa.schema([("index", pa.int64()), ("value", pa.float32())])
_MAX_HEADER_BYTES = 1000
_ROWS_AT_ONCE = 65536
MAX_ABSENT_SHARE = 0.05


def read_shape(file: Path) -> tuple[int, int]:
    """Return the numbers of rows and columns that the file declares."""
    if file.suffix == ".npz":
        return _load_npz(file).shape
    with file.open("rb") as stream:
        return _parse_header(file, stream.readline(_MAX_HEADER_BYTES))


def read_matrix(file: Path, shape: tuple[int, int]) -> sparse.csr_array:
    """Read a matrix of positive float32 numbers, of this shape; indices ascend within a row.

    Raises:
        DatasetError: the file, its shape or an entry is wrong; names row and column.
    """
    if file.suffix == ".npz":
        matrix = _load_npz(file)
        _require_shape(file, matrix.shape, shape)
        return _from_npz(file, matrix)
    _require_shape(file, read_shape(file), shape)
    return _read_text(file, shape)


def build_matrix(
    file: Path,
    entries: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    shape: tuple[int, int],
    first_row: int,
) -> sparse.csr_array:
    """Check a matrix's entries and build it.

    Args:
        file: named in errors.
        entries: (rows,) length of each row, (entries,) column indices, (entries,) values.
        shape: rows and columns.
        first_row: the number of the first row in errors.

    Raises:
        DatasetError: an index is out of range, repeated or out of order, or a value is not a
            positive finite number.
    """
    lengths, indices, values = entries
    rows = np.repeat(np.arange(len(lengths)), lengths)

    def refuse(bad: NDArray[np.bool_], message: str) -> None:
        if bad.any():
            at = int(bad.argmax())
            raise error_at(
                file,
                message.format(values[at]),
                row=int(rows[at]) + first_row,
                column=str(indices[at]),
            )

    in_same_row = rows[1:] == rows[:-1]
    steps = np.diff(indices)
    refuse((indices < 0) | (indices >= shape[1]), f"the index is outside 0..{shape[1] - 1}")
    refuse(in_same_row & (steps == 0), "the index occurs twice in its row")
    refuse(in_same_row & (steps < 0), "a smaller index follows; indices must ascend")
    refuse(~np.isfinite(values) | (values <= 0), "the value {} is not a positive finite number")
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_array((values.astype(np.float32), indices, indptr), shape=shape)


def write_matrix(file: Path, matrix: sparse.csr_array) -> None:
    """Write a matrix as text, with enough digits to restore each float32."""
    num_rows, num_columns = matrix.shape
    with file.open("wb") as stream:
        stream.write(f"{num_rows} {num_columns}\n".encode())
        for start in range(0, num_rows, _ROWS_AT_ONCE):
            rows = matrix[start : start + _ROWS_AT_ONCE]
            indices = pa.array(rows.indices).cast(pa.string())
            values = pa.array(rows.data.astype(np.float32)).cast(pa.string())
            entries = pc.binary_join_element_wise(indices, values, ":")
            lists = pa.ListArray.from_arrays(pa.array(rows.indptr, pa.int32()), entries)
            write_lines(stream, pc.binary_join(lists, " "))


def _require_shape(file: Path, found: tuple[int, int], expected: tuple[int, int]) -> None:
    if found != expected:
        raise error_at(
            file,
            f"has {found[0]} rows and {found[1]} columns, but there are {expected[0]} and"
            f" {expected[1]} texts",
            advice="it needs a row and a column for each line of the two text files",
        )


def _parse_header(file: Path, line: bytes) -> tuple[int, int]:
    found = re.fullmatch(rb"\s*(\d{1,18})\s+(\d{1,18})\s*", line.split(b"#")[0])
    if not found:
        shown = line[:40].decode(errors="replace").strip()
        raise error_at(
            file,
            f"the first line is {shown!r}, not the two whole numbers 'rows columns'",
            row=1,
        )
    return int(found[1]), int(found[2])


def _read_text(file: Path, shape: tuple[int, int]) -> sparse.csr_array:
    lengths = [np.empty(0, dtype=np.int64)]
    tables = [_ENTRIES.empty_table()]
    line = 2
    with file.open("rb") as stream:
        is_whole = _ends_in_line_break(stream)
        stream.readline()
        for block in line_blocks(stream):
            if b"#" in block:
                block = re.sub(rb"#[^\n]*", b"", block)
            counts, parsed = parse_tokens(file, block, line, _ENTRIES)
            lengths.append(counts)
            tables.append(parsed)
            line += len(counts)
    row_lengths = _fit(file, np.concatenate(lengths), shape[0], is_whole)
    table = pa.concat_tables(tables)
    entries = row_lengths, table["index"].to_numpy(), table["value"].to_numpy()
    return build_matrix(file, entries, shape, first_row=2)


def _fit(
    file: Path, lengths: NDArray[np.int64], num_rows: int, is_whole: bool
) -> NDArray[np.int64]:
    """Pad the lengths of the rows with zeros to the number of rows in the header.

    Rows can only be absent if they are few and the last one ``is_whole``.
    """
    surplus = np.flatnonzero(lengths[num_rows:])
    if len(surplus):
        row = int(surplus[0]) + num_rows + 2
        raise error_at(file, f"there are more rows than the {num_rows} of the header", row=row)
    missing = num_rows - len(lengths)
    if missing > 0 and (not is_whole or missing > MAX_ABSENT_SHARE * num_rows):
        within = "" if is_whole else ", and its last line has no end"
        raise error_at(
            file,
            f"it ends after {len(lengths)} of the {num_rows} rows of its header{within}",
            advice="it was cut off: copy it again; if the other rows are empty, add an empty line "
            "for each",
            row=len(lengths) + 1,
        )
    if missing > 0:
        message = f"the last {missing} of {num_rows} rows are absent and count as empty"
        log.warning(Finding("warning", str(file), message, row=len(lengths) + 2))
        return np.pad(lengths, (0, missing))
    return lengths[:num_rows]


def _ends_in_line_break(stream: BinaryIO) -> bool:
    """Look at the last byte of a file that is not empty, and go back to the first."""
    stream.seek(-1, SEEK_END)
    last = stream.read(1)
    stream.seek(0)
    return last == b"\n"


def _load_npz(file: Path) -> Any:
    try:
        matrix = sparse.load_npz(file)
        usable = matrix.format == "csr" and matrix.ndim == 2 and matrix.dtype.kind in "biuf"
        if usable:
            matrix.check_format(full_check=False)
    except Exception as error:  # the zip, npy and scipy readers raise many types on damaged files
        raise error_at(file, f"is not a sparse matrix that scipy can read: {error}") from error
    if not usable:
        kind = f"{matrix.ndim}-dimensional {matrix.format} matrix of {matrix.dtype}"
        raise error_at(
            file,
            f"is a {kind}, not a 2-dimensional csr matrix of numbers",
            advice="save it with scipy.sparse.save_npz(file, matrix.tocsr())",
        )
    backwards = np.flatnonzero(np.diff(matrix.indptr) < 0)
    if len(backwards):
        raise error_at(file, "the row ends before it starts", row=int(backwards[0]))
    return matrix


def _from_npz(file: Path, matrix: Any) -> sparse.csr_array:
    matrix.sort_indices()
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32)
    entries = np.diff(matrix.indptr), matrix.indices, values
    return build_matrix(file, entries, matrix.shape, first_row=0)
