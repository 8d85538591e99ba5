"""A user's own tables: CSV, TSV, JSON lines or parquet; files, folders or globs; any file system.

A source is cut into pieces that tasks read apart: byte ranges of text files, row groups of parquet.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import FileSelector, FileSystem, FileType

from ramen_ray.data.dataset import DatasetError
from ramen_ray.data.findings import Finding, raise_errors

BYTES_PER_PIECE = 16 << 20
BYTES_PER_BLOCK = 4 << 20
ROWS_PER_BLOCK = 65_536
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".bz2", ".zst")
NUMBER = r"^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*$"
ISO_TIME = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?Z?)?$"
MAX_EXAMPLES = 3

Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Piece:
    """What one task reads of a source.

    Attributes:
        filesystem: where the file lies.
        path: the file, as the file system names it.
        format: ``csv``, ``tsv``, ``jsonl`` or ``parquet``.
        columns: the columns to read.
        header: all columns of a CSV or TSV file.
        start: first byte, or first row group.
        stop: byte or row group after the last; -1 for the whole of a compressed file.
    """

    filesystem: FileSystem
    path: str
    format: str
    columns: tuple[str, ...]
    header: tuple[str, ...]
    start: int
    stop: int


@dataclass
class Block:
    """Some rows of a piece.

    Attributes:
        rows: the asked columns; text files' cells are strings (CSV, TSV) or JSON's types.
        row_numbers: (rows,) int64: in parquet within the file, from 0; in text files the line,
            counted from 1 at the start of the piece.
        findings: lines that could not be read, and damaged encoding.
    """

    piece: Piece
    rows: pa.Table
    row_numbers: NDArray[np.int64]
    findings: list[Finding] = field(default_factory=list)

    def finding(self, column: str, bad: Booleans, message: str, advice: str) -> Finding:
        """Describe the rows that ``bad`` (rows,) marks in ``column`` as one error."""
        rows = np.flatnonzero(bad)
        values = self.rows[column].take(pa.array(rows[:MAX_EXAMPLES])).to_pylist()
        shown = ", ".join("nothing" if value is None else repr(value) for value in values)
        more = f" and {len(rows) - MAX_EXAMPLES} more" if len(rows) > MAX_EXAMPLES else ""
        row = lines_before(self.piece) + int(self.row_numbers[rows[0]])
        return Finding(
            "error", self.piece.path, f"{message}: {shown}{more}", advice, row=row, column=column
        )


def find_pieces(source: str, columns: Sequence[str]) -> list[Piece]:
    """Find the files of ``source`` and cut them into pieces, in a fixed order.

    Args:
        source: a file, a folder (all files below it that have a known suffix), or a glob; a path or
            a URI that pyarrow knows, such as ``s3://bucket/clicks/*.parquet``.
        columns: the columns that every file must have.

    Raises:
        DatasetError: nothing is there, or a file lacks a column or cannot be opened.
    """
    filesystem, path = _filesystem(source)
    files = _files(filesystem, path, source)
    pieces: list[Piece] = []
    findings: list[Finding] = []
    for file, size in files:
        try:
            pieces += _pieces_of(filesystem, file, size, tuple(columns))
        except DatasetError as error:
            findings.append(Finding("error", file, str(error)))
        except (pa.ArrowInvalid, OSError) as error:
            findings.append(Finding("error", file, f"cannot be read: {_first_line(error)}"))
    raise_errors(f"the source {source}", findings)
    return pieces


def read_piece(piece: Piece) -> Iterator[Block]:
    """Read a piece block by block.

    Raises:
        DatasetError: the file cannot be parsed; lines with too many or too few cells are findings
            of their block instead.
    """
    try:
        match piece.format:
            case "parquet":
                yield from _read_parquet(piece)
            case "jsonl":
                yield from _read_json(piece)
            case _:
                yield from _read_csv(piece)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError, EOFError) as error:
        place = f"from byte {piece.start}" if piece.start else "from the start"
        raise DatasetError(
            f"{piece.path}: cannot be read as {piece.format} ({place}): {_first_line(error)}"
        ) from error


def as_strings(column: pa.ChunkedArray) -> tuple[pa.Array, Booleans]:
    """Return a column's cells as strings, and which (rows,) are null, empty or white space."""
    strings = _one_chunk(column).cast(pa.string())
    empty = pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(strings)), 0), True)
    return pc.fill_null(strings, ""), empty.to_numpy(zero_copy_only=False)


def as_numbers(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], Booleans]:
    """Return a column's cells as float64, and which (rows,) are not finite numbers (given as 0)."""
    values = _one_chunk(column)
    if not _is_number(values.type):
        strings = values.cast(pa.string())
        good = pc.fill_null(pc.match_substring_regex(strings, NUMBER), False)
        values = pc.utf8_trim_whitespace(pc.if_else(good, strings, None))
    numbers = pc.fill_null(values.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False)
    bad = ~np.isfinite(numbers)
    return np.where(bad, 0.0, numbers), bad


def as_seconds(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], Booleans]:
    """Return a column's times as float64 seconds since 1970, and which (rows,) are no times.

    Times are timestamps or dates, numbers (seconds), or ISO 8601 text without a zone or in UTC.
    """
    values = _one_chunk(column)
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        numbers = values.cast(pa.timestamp("us")).cast(pa.int64())
        seconds, bad = as_numbers(pa.chunked_array([numbers]))
        return seconds / 1e6, bad
    if _is_number(values.type):
        return as_numbers(column)
    strings = pc.utf8_trim_whitespace(values.cast(pa.string()))
    iso = pc.fill_null(pc.match_substring_regex(strings, ISO_TIME), False)
    texts = pc.replace_substring(pc.if_else(iso, strings, None), "Z", "")
    try:
        times = texts.cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid:  # a 13th month
        times = pa.array([_microseconds(text) for text in texts.to_pylist()], pa.int64())
    from_iso, not_iso = as_numbers(pa.chunked_array([times]))
    from_number, no_number = as_numbers(pa.chunked_array([strings]))
    return np.where(not_iso, from_number, from_iso / 1e6), not_iso & no_number


def _microseconds(text: str | None) -> int | None:
    try:
        return int(np.datetime64(text, "us").astype(np.int64)) if text else None
    except ValueError:
        return None


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunk = column.combine_chunks()
    return pc.cast(chunk, chunk.type.value_type) if pa.types.is_dictionary(chunk.type) else chunk


def _filesystem(source: str) -> tuple[FileSystem, str]:
    try:
        if re.match(r"^\w+://", source):
            filesystem, path = FileSystem.from_uri(source)
        else:
            filesystem, path = FileSystem.from_uri(Path(source).expanduser().absolute().as_uri())
            path = str(Path(source).expanduser().absolute())  # as_uri quotes what globs need
    except (pa.ArrowInvalid, OSError) as error:
        raise DatasetError(f"cannot open {source}: {_first_line(error)}") from error
    return filesystem, path


def _files(filesystem: FileSystem, path: str, source: str) -> list[tuple[str, int]]:
    """Return the files (path, bytes) that ``path`` names, in the order of their names."""
    info = filesystem.get_file_info(path)
    if info.type == FileType.File:
        return [(path, info.size)]
    parts = PurePosixPath(path).parts
    wild = [row for row, part in enumerate(parts) if re.search(r"[*?\[]", part)]
    if info.type == FileType.NotFound and not wild:
        raise DatasetError(f"there is no file or folder {source}")
    is_glob = bool(wild) and info.type == FileType.NotFound
    root = str(PurePosixPath(*parts[: wild[0]])) if is_glob else path
    selector = FileSelector(root, allow_not_found=True, recursive=True)
    found = sorted(
        (file.path, file.size)
        for file in filesystem.get_file_info(selector)
        if file.type == FileType.File
        and not any(part[0] in "._" for part in PurePosixPath(file.path).relative_to(root).parts)
        and (fnmatch.fnmatchcase(file.path, path) if is_glob else _format(file.path))
    )
    if not found:
        raise DatasetError(f"{source} holds no files ({', '.join(FORMATS)})")
    return found


def _format(path: str) -> str | None:
    plain = PurePosixPath(path.removesuffix(_compression(path)))
    return FORMATS.get(plain.suffix.lower())


def _compression(path: str) -> str:
    return next((suffix for suffix in COMPRESSIONS if path.endswith(suffix)), "")


def _pieces_of(
    filesystem: FileSystem, path: str, size: int, columns: tuple[str, ...]
) -> list[Piece]:
    kind = _format(path)
    if kind is None:
        known = ", ".join(FORMATS)
        raise DatasetError(f"unknown suffix; known are {known}, for text also with .gz, .bz2, .zst")
    if kind == "parquet":
        with filesystem.open_input_file(path) as file:
            parquet = pq.ParquetFile(file)
            header, groups = tuple(parquet.schema_arrow.names), parquet.num_row_groups
        cuts = list(range(groups + 1))
    else:
        header = _read_header(filesystem, path, kind)
        if not size:
            raise DatasetError("is empty")
        compressed = bool(_compression(path))
        cuts = [0, -1] if compressed else [*range(0, size, BYTES_PER_PIECE), size]
    missing = [name for name in columns if header and name not in header]
    if missing:
        raise DatasetError(
            f"has no column {', '.join(map(repr, missing))}; it has {', '.join(header)}"
        )
    return [
        Piece(filesystem, path, kind, columns, header, start, stop)
        for start, stop in pairwise(cuts)
    ]


def _read_header(filesystem: FileSystem, path: str, kind: str) -> tuple[str, ...]:
    """Return a text table's columns; none for JSON lines, where each line names its own."""
    if kind == "jsonl":
        return ()
    with filesystem.open_input_stream(path, compression="detect") as stream:
        first_line = stream.read(1 << 20).split(b"\n", 1)[0]
    if not first_line.strip():
        raise DatasetError("its first line, which should name the columns, is empty")
    parse = pa.csv.ParseOptions(delimiter=_delimiter(kind))
    names = pa.csv.read_csv(pa.BufferReader(first_line + b"\n"), parse_options=parse).column_names
    return tuple(names)


def _delimiter(kind: str) -> str:
    return "\t" if kind == "tsv" else ","


def _read_parquet(piece: Piece) -> Iterator[Block]:
    with piece.filesystem.open_input_file(piece.path) as file:
        parquet = pq.ParquetFile(file)
        first_row = sum(parquet.metadata.row_group(g).num_rows for g in range(piece.start))
        batches = parquet.iter_batches(
            ROWS_PER_BLOCK, row_groups=[piece.start], columns=list(piece.columns)
        )
        for batch in batches:
            rows = pa.Table.from_batches([batch]).select(piece.columns)
            yield Block(piece, rows, first_row + np.arange(len(batch)))
            first_row += len(batch)


def _read_csv(piece: Piece) -> Iterator[Block]:
    for chunk in _chunks(piece):
        names_columns = not piece.start and chunk.first_line == 1
        skipped: list[pa.csv.InvalidRow] = []
        reader = pa.csv.open_csv(
            pa.BufferReader(chunk.data),
            pa.csv.ReadOptions(
                use_threads=False,
                block_size=BYTES_PER_BLOCK,
                column_names=piece.header,
                skip_rows=int(names_columns),
            ),
            pa.csv.ParseOptions(
                delimiter=_delimiter(piece.format),
                newlines_in_values=True,
                invalid_row_handler=partial(_skip, skipped),
                ignore_empty_lines=False,
            ),
            pa.csv.ConvertOptions(
                include_columns=piece.columns,
                column_types={name: pa.string() for name in piece.columns},
            ),
        )
        line = chunk.first_line + names_columns
        findings = chunk.findings
        for batch in reader:
            findings += [_skipped_line(piece, row, chunk.first_line) for row in skipped]
            lines = line + np.arange(len(batch) + len(skipped))
            line += len(lines)
            lines = np.setdiff1d(lines, [chunk.first_line - 1 + row.number for row in skipped])
            yield Block(piece, pa.Table.from_batches([batch]), lines, findings)
            findings = []
            skipped.clear()
        findings += [_skipped_line(piece, row, chunk.first_line) for row in skipped]
        if findings:  # no batch comes where all lines were skipped
            nothing = pa.table({name: pa.array([], pa.string()) for name in piece.columns})
            yield Block(piece, nothing, np.empty(0, dtype=np.int64), findings)


def _skip(skipped: list[pa.csv.InvalidRow], row: pa.csv.InvalidRow) -> str:
    skipped.append(row)
    return "skip"


def _skipped_line(piece: Piece, row: pa.csv.InvalidRow, first_line: int) -> Finding:
    return Finding(
        "error",
        piece.path,
        f"{row.actual_columns} cells instead of {row.expected_columns}: {row.text[:80]!r}",
        "quote cells that hold the delimiter",
        row=lines_before(piece) + first_line - 1 + row.number,
    )


def _read_json(piece: Piece) -> Iterator[Block]:
    for chunk in _chunks(piece):
        if wrong := re.search(rb"^[^\S\n]*[^{\s].*$", chunk.data, re.MULTILINE):
            line = lines_before(piece) + chunk.first_line + chunk.data[: wrong.start()].count(b"\n")
            raise DatasetError(f"{piece.path}, row {line}: is not a JSON object")
        read = pa.json.ReadOptions(use_threads=False, block_size=BYTES_PER_BLOCK)
        parse = pa.json.ParseOptions(
            explicit_schema=_json_schema(piece, chunk.data, read),
            unexpected_field_behavior="ignore",
        )
        line = chunk.first_line
        findings = chunk.findings
        for batch in pa.json.open_json(pa.BufferReader(chunk.data), read, parse):
            rows = pa.Table.from_batches([batch]).select(piece.columns)
            yield Block(piece, rows, line + np.arange(len(batch)), findings)
            line += len(batch)
            findings = []


def _json_schema(piece: Piece, data: bytes, read: pa.json.ReadOptions) -> pa.Schema:
    """Take each column as the first lines of ``data`` have it: numbers, or else text."""
    found = next(iter(pa.json.open_json(pa.BufferReader(data), read))).schema
    missing = [name for name in piece.columns if name not in found.names]
    if missing:
        raise DatasetError(
            f"{piece.path}: the lines have no {', '.join(map(repr, missing))}; "
            f"they have {', '.join(found.names)}"
        )
    kinds = {name: found.field(name).type for name in piece.columns}
    return pa.schema(
        [(name, kind if _is_number(kind) else pa.string()) for name, kind in kinds.items()]
    )


@dataclass(frozen=True)
class _Chunk:
    """Whole lines of a text file, as UTF-8; ``first_line`` counts from 1 in the piece."""

    data: bytes
    first_line: int
    findings: list[Finding]


def _chunks(piece: Piece) -> Iterator[_Chunk]:
    """Read the lines that start within a piece, a bounded number of bytes at a time."""
    compressed = piece.stop < 0
    if compressed:
        with piece.filesystem.open_input_stream(piece.path, compression="detect") as stream:
            yield from _checked(piece, _whole_lines(stream))
        return
    with piece.filesystem.open_input_file(piece.path) as file:
        first = max(piece.start - 1, 0)  # a line starts in the piece if its line break is before
        data = file.read_at(piece.stop - first, first)
        if piece.start:
            data = data[data.find(b"\n") + 1 or len(data) :]
        if data and not data.endswith(b"\n"):
            file.seek(piece.stop)
            data += _rest_of_line(file)
    yield from _checked(piece, [data])


def _whole_lines(stream: pa.NativeFile) -> Iterator[bytes]:
    while data := stream.read(BYTES_PER_PIECE):
        yield data if data.endswith(b"\n") else data + _rest_of_line(stream)


def _rest_of_line(stream: pa.NativeFile) -> bytes:
    rest = b""
    while (letter := stream.read(1)) not in (b"", b"\n"):
        rest += letter
    return rest + b"\n"


def _checked(piece: Piece, parts: Iterable[bytes]) -> Iterator[_Chunk]:
    line = 1
    for data in parts:
        if data.count(b'"') % 2 and piece.format != "jsonl":
            raise DatasetError(
                f"{piece.path}: a quote is not closed, or a cell with line breaks goes across "
                f"{BYTES_PER_PIECE >> 20} MB; write such texts as parquet or JSON lines"
            )
        text, damaged = _to_utf8(data)
        if data.strip():
            yield _Chunk(text, line, [_latin1(piece, damaged)] if damaged else [])
        line += data.count(b"\n")


def _to_utf8(data: bytes) -> tuple[bytes, int]:
    """Read lines that are not UTF-8 as latin-1; returns UTF-8 and how many lines those were."""
    try:
        data.decode()
    except UnicodeDecodeError:
        lines, damaged = data.split(b"\n"), 0
        for row, line in enumerate(lines):
            try:
                line.decode()
            except UnicodeDecodeError:
                lines[row] = line.decode("latin-1").encode()
                damaged += 1
        return b"\n".join(lines), damaged
    return data, 0


def _latin1(piece: Piece, damaged: int) -> Finding:
    return Finding(
        "warning",
        piece.path,
        f"{damaged} lines are not UTF-8 and were read as latin-1",
        "save the file as UTF-8 if they look wrong",
    )


def lines_before(piece: Piece) -> int:
    """Count the lines before a piece of a text file; only ever needed to name a wrong one."""
    if piece.format == "parquet" or piece.start == 0:
        return 0
    count, data = 0, b""
    with piece.filesystem.open_input_file(piece.path) as file:
        while (left := piece.start - file.tell()) > 0:
            data = file.read(min(left, BYTES_PER_PIECE))
            count += data.count(b"\n")
    return count + (not data.endswith(b"\n"))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
