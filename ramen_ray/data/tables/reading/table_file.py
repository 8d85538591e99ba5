"""A file of a user's table, whatever its format: its columns, and its rows batch by batch."""

import codecs
import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import PurePosixPath
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem

from ramen_ray.data.findings import error_at
from ramen_ray.data.store.dataset import WHILE_READ, DatasetError
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.store.same_texts import not_utf8
from ramen_ray.data.tables.reading.cells import is_text, plain_values
from ramen_ray.data.tables.reading.records import (
    ENCODING_ADVICE,
    MARK,
    Rows,
    parse_objects,
    read_blocks,
    read_records,
    with_line_feeds,
)
from ramen_ray.errors import first_line_of

ROWS_PER_BATCH = 65_536
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
OTHER_FORMATS = {
    b"\x1f\x8b": "is compressed by gzip; add .gz to its name",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; add .zst to its name",
    b"PK\x03\x04": "is a zip archive or an Excel workbook; save the table as CSV",
    b"PAR1": "is parquet; name it .parquet",
    b"version https://git-lfs": "only points to a file that Git LFS keeps; run git lfs pull",
    b"<!": "is a web page or XML; save the table itself",
    b"<html": "is a web page; save the table itself",
}

MAX_HEADER_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_ARRAYS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""What is read in place of types that Arrow cannot filter."""
PARTITION = re.compile(r"^([^=/]+)=(.*)$")
OTHER_DELIMITERS = re.compile(r"[,;|\t]")
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class TableFile:
    """A file of a user's table, as it was when it was found."""

    filesystem: FileSystem
    info: FileInfo
    encoding: str = "utf-8"  # of text files
    header: tuple[str, ...] = ()  # its own columns; of JSON lines, the fields of the first
    columns: tuple[str, ...] = ()  # those to read
    partitions: dict[str, str | None] = field(default_factory=dict)  # as in day=2026-10-01

    @property
    def path(self) -> str:
        """Where it is."""
        return self.info.path

    @property
    def format(self) -> str:
        """``csv``, ``tsv``, ``jsonl`` or ``parquet``."""
        return FORMATS[suffixes(self.path)[0]]

    @property
    def own_columns(self) -> list[str]:
        """The columns to read of the file itself."""
        return [name for name in self.columns if name not in self.partitions]

    def open(self) -> pa.NativeFile:
        """Open it as a stream of what was compressed."""
        compression = COMPRESSIONS.get(suffixes(self.path)[1])
        return self.filesystem.open_input_stream(self.path, compression=compression)

    def check_unchanged(self) -> None:
        """Raise a DatasetError if the file is not the one that was found."""
        now = self.filesystem.get_file_info(self.path)
        if (now.size, now.mtime_ns) != (self.info.size, self.info.mtime_ns):
            raise DatasetError(f"{self.path} has changed {WHILE_READ}")


def suffixes(path: str) -> tuple[str, str]:
    """Return a file's suffix of a format and that of a compression, both in lower case."""
    name = PurePosixPath(path.lower())
    compression = name.suffix if name.suffix in COMPRESSIONS else ""
    return PurePosixPath(name.name.removesuffix(compression)).suffix, compression


def open_file(file: TableFile, columns: tuple[str, ...], advice: str = "") -> TableFile | None:
    """Look at a file's header; returns None if it has not a single byte of text.

    Raises a DatasetError if it cannot be read, lacks one of ``columns``, with ``advice`` on what to
    do, or has it twice.
    """
    path = file.path
    if suffixes(path)[0] not in FORMATS:
        known = ", ".join(FORMATS)
        raise DatasetError(f"unknown suffix; known are {known}, for text also with .gz, .zst")
    if file.info.size == 0:
        return None
    try:
        header = _header(file)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"cannot be read: {first_line_of(error)}") from error
    if header is None:
        return None
    header = _as_asked(header, columns)
    partitions = {
        name: value for name, value in _partitions(path).items() if name not in header
    }  # a file's own column comes first
    if twice := [name for name in columns if header.count(name) > 1]:
        raise DatasetError(f"has several columns {', '.join(map(repr, twice))}; rename the others")
    missing = [name for name in columns if name not in header and name not in partitions]
    if missing and file.format != "jsonl":
        is_one = len(header) == 1 and OTHER_DELIMITERS.search(header[0])
        raise DatasetError(
            f"has no column {', '.join(map(repr, missing))}; it has"
            f" {', '.join([*map(_shown, header), *partitions])}"
            f"{'; separate the cells of .csv by commas, of .tsv by tabs' if is_one else advice}"
        )
    return replace(file, header=header, columns=columns, partitions=partitions)


def _header(file: TableFile) -> tuple[str, ...] | None:
    """Return a file's columns; None if it has not a single byte of text."""
    if file.format == "parquet":
        with open_parquet(file.path, file.filesystem) as parquet:
            return tuple(parquet.schema_arrow.names)
    with file.open() as stream:
        start = stream.read(MAX_HEADER_BYTES)
    for mark, message in OTHER_FORMATS.items():
        if start.startswith(mark):
            raise DatasetError(message)
    # who reads all of it says where it is not of the encoding
    text = codecs.getincrementaldecoder(file.encoding)("replace").decode(start)
    if "\ufffd" in text.partition("\n")[0]:
        raise DatasetError(f"its first line is not {file.encoding.upper()}; {ENCODING_ADVICE}")
    text = with_line_feeds(text.replace(MARK, ""))
    if not text.strip("\n\t "):
        return None
    if file.format == "jsonl":
        return _fields_of(text)
    return _header_of(text + "\n" * (len(start) < MAX_HEADER_BYTES), file.format)


def _header_of(start: str, kind: str) -> tuple[str, ...]:
    """Return the columns of a file that begins with ``start``, or raise a DatasetError."""
    whole = start[: start.rfind("\n") + 1]
    if "\r" in whole.partition("\n")[0]:
        raise DatasetError("its lines end with carriage returns alone; save it with line feeds")
    lines = StringIO(whole, newline="\n")
    try:
        if kind == "csv":
            first = next(csv.reader(lines, strict=True))
        else:
            first = next(lines).removesuffix("\n").split("\t")
    except (csv.Error, StopIteration):
        raise DatasetError(
            "its first line, which should name the columns, has an open quote, or over"
            f" {MAX_HEADER_BYTES} bytes"
        ) from None
    if not "".join(first).strip():
        raise DatasetError("its first line, which should name the columns, is empty")
    return tuple(first)


def _fields_of(start: str) -> tuple[str, ...]:
    """Return the fields of texts and numbers of the first object in the beginning of a file."""
    try:
        first = json.loads(start.strip().partition("\n")[0])
    except (ValueError, RecursionError):
        return ()
    cells = first.items() if isinstance(first, dict) else ()
    return tuple(name for name, cell in cells if cell is None or type(cell) in (str, int, float))


def _partitions(path: str) -> dict[str, str | None]:
    matches = filter(None, map(PARTITION.match, PurePosixPath(path).parent.parts))
    values = {match[1]: None if match[2] == NO_PARTITION else match[2] for match in matches}
    try:
        return {name: text and unquote(text, errors="strict") for name, text in values.items()}
    except UnicodeDecodeError as error:
        raise DatasetError("its folder's name is not UTF-8; rename it") from error


def _as_asked(header: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Rename columns whose names differ from those asked for by white space only."""
    asked = {" ".join(name.split()): name for name in columns if name not in header}
    return tuple(asked.get(" ".join(name.split()), name) for name in header)


def _shown(name: str) -> str:
    return name if name.isprintable() and name == name.strip() else repr(name)


def read_file(file: TableFile) -> Iterator[Rows]:
    """Read a file's rows, in order; a DatasetError says where it cannot be, or that it changed."""
    read = _read_parquet if file.format == "parquet" else _read_text
    file.check_unchanged()
    try:
        for rows in read(file):
            yield _with_partitions(file, rows)
    except (pa.ArrowException, OSError) as error:
        file.check_unchanged()  # which may be why
        raise DatasetError(f"{file.path} cannot be read: {first_line_of(error)}") from error
    file.check_unchanged()


def _read_parquet(file: TableFile) -> Iterator[Rows]:
    first = 0
    with open_parquet(file.path, file.filesystem) as parquet:
        stored = dict(zip(file.header, parquet.schema_arrow.names, strict=True))
        wanted = [stored[name] for name in file.own_columns]
        for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=wanted):
            # Arrow also reads "query.text" where "query" is asked for
            rows = pa.Table.from_batches([batch.select(wanted)]).rename_columns(file.own_columns)
            types = [_ARRAYS.get(field.type, field.type) for field in rows.schema]
            plain = rows.cast(pa.schema(list(zip(file.own_columns, types, strict=True))))
            _refuse_bytes(file, plain, first)
            yield Rows(plain, first + np.arange(len(batch)))
            first += len(batch)


def _refuse_bytes(file: TableFile, rows: pa.Table, first: int) -> None:
    """Refuse texts that are not UTF-8, which Arrow reads from parquet as if they were."""
    for name in rows.column_names:
        if is_text(rows[name].type) and (flags := not_utf8(plain_values(rows[name]))).any():
            advice = "write the column again, as UTF-8"
            row = first + int(flags.argmax())
            raise error_at(file.path, "is not UTF-8", advice=advice, row=row, column=name)


def _read_text(file: TableFile) -> Iterator[Rows]:
    columns = file.own_columns
    with file.open() as stream:
        blocks = read_blocks(stream, file.path, file.encoding)
        if file.format == "jsonl":
            yield from (parse_objects(block, file.path, columns) for block in blocks)
        else:
            yield from read_records(blocks, file.path, file.format, file.header, columns)


def _with_partitions(file: TableFile, rows: Rows) -> Rows:
    """Add the columns that folders' names give; returns the columns that were asked for."""
    cells = rows.cells
    num_rows = len(rows.numbers)
    for name, value in file.partitions.items():
        if name in file.columns:
            cells = cells.append_column(name, pa.repeat(pa.scalar(value, pa.string()), num_rows))
    return Rows(cells.select(list(file.columns)), rows.numbers, rows.faults)
