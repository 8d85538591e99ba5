"""Files of the extreme classification (XC) repository: texts, JSON objects, sparse matrices, ids.

A matrix is scipy's npz, or text: a first line ``rows columns``, then for each row a line
``index:value index:value ...``, counted from 0. Errors are DatasetErrors that name file and row.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv
from scipy.sparse import csr_array, load_npz

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.findings import error_at

ROWS_AT_ONCE = 1 << 16

_ENTRIES = pa.schema([("index", pa.int64()), ("value", pa.float32())])
_SPACES = bytes.maketrans(b" \t\r", b"\n\n\n")
_TOKEN = re.compile(rb"\d{1,18}:[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    r"""Read a text file, gzipped if it ends in ``.gz``; only ``\n`` and ``\r\n`` end a line."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with cast(BinaryIO, opened(path, "rb")) as stream:
            lines = [line.removesuffix(b"\n").removesuffix(b"\r") for line in stream]
    except (OSError, EOFError, zlib.error) as error:
        raise error_at(path, f"the file is damaged or cut off: {error}") from error
    texts: list[str] = []
    for line in lines:
        try:
            texts.append(line.decode(encoding).removeprefix("\ufeff"))
        except (UnicodeDecodeError, LookupError) as error:  # of the line, or of the encoding
            advice = "--encoding names the file's own, such as latin-1"
            row = len(texts) + 1
            raise error_at(path, f"the line is not {encoding}", advice=advice, row=row) from error
    return texts


def read_objects(path: Path, **needed: type) -> list[dict[str, Any]]:
    """Read one JSON object per line, blank lines apart; each has the ``needed`` keys and types."""
    objects = []
    for row, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise error_at(path, f"the line is not JSON: {error}", row=row) from error
        for key, kind in needed.items():
            if not isinstance(content, dict) or not isinstance(content.get(key), kind):
                raise error_at(path, f"there is no {kind.__name__} {key!r}", row=row, column=key)
        objects.append(content)
    return objects


def read_ids(path: Path, limits: tuple[int, ...]) -> Int64s:
    """Read a tuple of ids per line, such as a query's and an ad's; (tuples, columns) int64."""
    tuples: list[list[int]] = []
    for row, line in enumerate(read_lines(path), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != len(limits) or not all(map(str.isdecimal, words)):
            raise error_at(path, f"{line[:40]!r} is not {len(limits)} ids", row=row)
        tuples.append(list(map(int, words)))
        if any(value >= limit for value, limit in zip(tuples[-1], limits, strict=True)):
            raise error_at(path, f"{line[:40]!r} has an id that no text has", row=row)
    return np.array(tuples, dtype=np.int64).reshape(-1, len(limits))


def read_matrix(path: Path, shape: tuple[int, int] | None = None) -> csr_array:
    """Read a matrix of positive float32 numbers, of this ``shape`` if it is given."""
    if path.suffix == ".npz":
        matrix = _load_npz(path)
        entries = np.diff(matrix.indptr), matrix.indices, matrix.data
        return build_matrix(path, matrix.shape, shape, entries)
    with path.open("rb") as stream:
        header = re.fullmatch(rb"\s*(\d{1,18})\s+(\d{1,18})\s*", stream.readline())
        lines = stream.read().removesuffix(b"\n").split(b"\n")
    if header is None:
        raise error_at(path, "the first line is not the two whole numbers 'rows columns'", row=1)
    read_shape = int(header[1]), int(header[2])
    if len(lines) != read_shape[0]:
        message = f"there are {len(lines)} rows, but {read_shape[0]} by the first line"
        raise error_at(path, message, advice="was it cut off?", row=len(lines) + 1)
    lengths = np.array([line.count(b":") for line in lines])
    indices, values = _parse(path, lines) if lengths.any() else (lengths[:0], lengths[:0])
    return build_matrix(path, read_shape, shape, (lengths, indices, values), first_row=2)


def _parse(path: Path, lines: list[bytes]) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        table = csv.read_csv(
            pa.BufferReader(b"\n".join(lines).translate(_SPACES)),
            csv.ReadOptions(column_names=_ENTRIES.names),
            csv.ParseOptions(delimiter=":", quote_char=False),
            csv.ConvertOptions(column_types=_ENTRIES, null_values=[]),
        )
    except pa.ArrowInvalid as error:  # it does not say where
        for row, line in enumerate(lines, start=2):
            if not all(map(_TOKEN.fullmatch, line.split())):
                raise error_at(path, "the line is not index:value pairs", row=row) from None
        raise error_at(path, f"a number is too large: {error}") from error
    return table["index"].to_numpy(), table["value"].to_numpy()


def build_matrix(
    path: Path,
    shape: tuple[int, int],
    wanted: tuple[int, int] | None,
    entries: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    first_row: int = 0,
) -> csr_array:
    """Check and build a matrix; ``entries`` are lengths of rows (rows,), indices and values."""
    if wanted is not None and shape != wanted:
        message = f"has {shape} rows and columns, but there are {wanted} texts"
        raise error_at(path, message)
    lengths, indices, values = entries
    rows = np.repeat(np.arange(shape[0]), lengths)
    if len(rows) != len(indices):
        raise error_at(path, "a number is missing, or a ':' too many")
    order = np.lexsort((indices, rows))
    indices = indices[order]
    with np.errstate(over="ignore"):  # what is too large is refused as infinite
        values = values[order].astype(np.float32)
    is_repeated = np.zeros(len(rows), dtype=np.bool_)
    is_repeated[1:] = (rows[1:] == rows[:-1]) & (indices[1:] == indices[:-1])

    def refuse(is_bad: Booleans, message: str) -> None:
        if is_bad.any():
            place = int(is_bad.argmax())
            row, column = int(rows[place]) + first_row, str(indices[place])
            raise error_at(path, message, row=row, column=column)

    refuse((indices < 0) | (indices >= shape[1]), f"the index is outside 0..{shape[1] - 1}")
    refuse(is_repeated, "the index occurs twice in its row")
    refuse(~np.isfinite(values) | (values <= 0), "the value is not a positive finite number")
    return csr_array((values, indices, np.concatenate([[0], np.cumsum(lengths)])), shape=shape)


def _load_npz(path: Path) -> Any:
    try:
        matrix = load_npz(path).tocsr()
        matrix.check_format()
        matrix.data.astype(np.float32)
    except Exception as error:  # the zip, npy and scipy readers raise many types on damaged files
        raise error_at(path, f"is not a sparse matrix that scipy can read: {error}") from error
    return matrix


def write_matrix(path: Path, matrix: csr_array) -> None:
    """Write a matrix as text, with enough digits to restore each float32."""
    matrix = csr_array(matrix, dtype=np.float32)
    with path.open("w", encoding="ascii") as stream:
        stream.write("{} {}\n".format(*matrix.shape))
        for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
            pairs = zip(matrix.indices[start:stop], matrix.data[start:stop], strict=True)
            stream.write(" ".join(f"{column}:{value}" for column, value in pairs) + "\n")


def write_lines(path: Path, batches: Iterable[Iterable[str]]) -> None:
    """Write texts, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for text in chain.from_iterable(batches):
            stream.write(f"{text}\n")
