"""Cut a source's files into pieces: byte ranges of text files, row groups of parquet."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.csv
from pyarrow.fs import FileSelector, FileSystem, FileType

from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.store.utf8 import decoded
from ramen_ray.errors import first_line_of

BYTES_PER_PIECE = 16 << 20
ROWS_PER_PIECE = 500_000
"""About as many edges as a piece holds."""
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".bz2", ".zst")
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
    """The part of a source that one task reads.

    Attributes:
        filesystem: the file's file system.
        path: the file's path in it.
        format: ``csv``, ``tsv``, ``jsonl`` or ``parquet``.
        columns: the columns to read.
        header: all columns of a CSV or TSV file.
        start: first byte, or first row group.
        stop: the byte or row group after the last; -1 for a whole compressed file.
    """

    filesystem: FileSystem
    path: str
    format: str
    columns: tuple[str, ...]
    header: tuple[str, ...]
    start: int
    stop: int


def find_pieces(source: str, columns: Sequence[str]) -> list[Piece]:
    """Find the files of ``source`` and cut them into pieces, in a fixed order.

    Args:
        source: a file, a folder (all files below it that have a known suffix), or a glob; a path or
            a URI that pyarrow knows, such as ``s3://bucket/clicks/*.parquet``.
        columns: the columns that every file must have.

    Raises:
        DatasetError: there are no files, or a file cannot be opened or lacks a column.
    """
    try:
        filesystem, path = _filesystem(source)
        files = _files(filesystem, path, source)
    except UnicodeError as error:
        raise DatasetError(f"{source!r}: a name is not UTF-8; rename the file or folder") from error
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"cannot open {source}: {first_line_of(error)}") from error
    pieces: list[Piece] = []
    findings: list[Finding] = []
    for file, size in files:
        try:
            pieces += _pieces_of(filesystem, file, size, tuple(dict.fromkeys(columns)))
        except DatasetError as error:
            findings.append(Finding("error", file, str(error)))
        except (pa.ArrowException, OSError) as error:
            findings.append(Finding("error", file, f"cannot be read: {first_line_of(error)}"))
    raise_errors(f"the source {source}", findings)
    return pieces


def _filesystem(source: str) -> tuple[FileSystem, str]:
    if re.match(r"^\w+://", source):
        filesystem, path = FileSystem.from_uri(source)
    else:
        filesystem, path = FileSystem.from_uri(Path(source).expanduser().absolute().as_uri())
        path = str(Path(source).expanduser().absolute())  # as_uri quotes what globs need
    return filesystem, path


def _files(filesystem: FileSystem, path: str, source: str) -> list[tuple[str, int]]:
    """Return the files (path, bytes) that ``path`` names, in the order of their names."""
    info = filesystem.get_file_info(path)
    if info.type == FileType.File:
        return [(path, info.size)]
    if info.type == FileType.Unknown:
        raise DatasetError(f"{source} is a pipe or a device; save its content to a file first")
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
        and (_fits(file.path, path) if is_glob else _format(file.path))
    )
    if not found:
        raise DatasetError(f"{source} holds no files ({', '.join(FORMATS)})")
    return found


def _fits(path: str, pattern: str) -> bool:
    """Return whether a glob matches; ``*`` does not cross folders, as in a shell."""
    same_depth = path.count("/") == pattern.count("/")
    return same_depth and PurePosixPath(path).match(pattern)


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
        with open_parquet(path, filesystem) as parquet:
            header, groups = tuple(parquet.schema_arrow.names), parquet.num_row_groups
        cuts = list(range(groups + 1))
    else:
        header = _read_header(filesystem, path, kind)
        if not size:
            raise DatasetError("is empty")
        compressed = bool(_compression(path))
        cuts = [0, -1] if compressed else [*range(0, size, BYTES_PER_PIECE), size]
    if twice := [name for name in columns if header.count(name) > 1]:
        raise DatasetError(f"has several columns {', '.join(map(repr, twice))}; rename the others")
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
    """Return the columns of a text table; none for JSON lines, where each line has its own."""
    with filesystem.open_input_stream(path, compression="detect") as stream:
        first_line, line_break, _ = stream.read(MAX_HEADER_BYTES).partition(b"\n")
    if first_line.startswith(UTF_16_MARKS):
        raise DatasetError("is UTF-16; save it as UTF-8")
    if kind == "jsonl":
        return ()
    if not line_break and len(first_line) == MAX_HEADER_BYTES:
        raise DatasetError(
            f"its first line, which should name the columns, has over {MAX_HEADER_BYTES} bytes"
        )
    first_line = decoded(first_line).data
    if not first_line.strip():
        raise DatasetError("its first line, which should name the columns, is empty")
    parse = pa.csv.ParseOptions(delimiter=delimiter_of(kind))
    names = pa.csv.read_csv(pa.BufferReader(first_line + b"\n"), parse_options=parse).column_names
    return tuple(names)


def delimiter_of(kind: str) -> str:
    """Return the delimiter between the cells of a format."""
    return "\t" if kind == "tsv" else ","
