"""Find the files of a user's table: a file, a folder or a glob, on a disk or in a store."""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

import fsspec
import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, FSSpecHandler, PyFileSystem

from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.tables.reading.delimited import header_of
from ramen_ray.data.tables.reading.json_lines import fields_of
from ramen_ray.data.tables.reading.lines import read_start
from ramen_ray.errors import DatasetError, first_line_of, redacted

logger = logging.getLogger(__name__)

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""Folders that say which files of a table are alive."""
ICEBERG = re.compile(r"^(?:(.*)/)?metadata/[^/]*\.metadata\.json$")
PARTITION = re.compile(r"^([^=/]+)=(.*)$")
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
GOOGLE = re.compile(r"^(gs|gcs)://(?!.*[?&]retry_limit_seconds=)")
GOOGLE_RETRIES_S = 15
"""How long Google's library tries again; by default a quarter of an hour, also where no network or
no credentials are."""


@dataclass(frozen=True)
class TableFile:
    """A file of a user's table.

    Attributes:
        filesystem: what it is on.
        path: its path there.
        format: ``csv``, ``tsv``, ``jsonl`` or ``parquet``.
        compression: ``gzip``, ``bz2``, ``zstd``; None if it is not compressed.
        header: its columns, without those of folders; of JSON lines, the fields of the first.
        columns: the columns to read.
        partitions: values of columns that folders' names give, as in ``day=2026-10-01``.
    """

    filesystem: FileSystem
    path: str
    format: str
    compression: str | None = None
    header: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    partitions: dict[str, str | None] = field(default_factory=dict)

    @property
    def own_columns(self) -> list[str]:
        """The columns to read of the file itself."""
        return [name for name in self.columns if name not in self.partitions]

    def open(self) -> pa.NativeFile:
        """Open it as a stream of what was compressed."""
        return self.filesystem.open_input_stream(self.path, compression=self.compression)


def find_files(source: str, columns: Sequence[str]) -> list[TableFile]:
    """Find the files of ``source``, in the order of their names.

    Args:
        source: a file, a folder (all files below it that have a known suffix), or a glob; a path,
            or a URI such as ``s3://bucket/clicks/*.parquet``.
        columns: the columns that every file must have, in itself or in its folders' names.

    Raises:
        DatasetError: there are no files; one cannot be opened or lacks a column; or a log beside
            them says which of them are alive.
    """
    shown = redacted(source)
    try:
        filesystem, path = _filesystem(source)
        listed = _list(filesystem, path, shown)
    except DatasetError:
        raise
    except UnicodeError as error:
        raise DatasetError(f"{shown!r}: a name is not UTF-8; rename the file or folder") from error
    except Exception as error:  # each store's library has its own
        raise DatasetError(f"cannot open {shown}: {first_line_of(error)}") from error
    files: list[TableFile] = []
    findings: list[Finding] = []
    for file in listed:
        try:
            files += _open(filesystem, file, tuple(columns), alone=len(listed) == 1)
        except DatasetError as error:
            findings.append(Finding("error", file, str(error).removeprefix(f"{file}: ")))
        except (pa.ArrowException, OSError) as error:
            findings.append(Finding("error", file, f"cannot be read: {first_line_of(error)}"))
    raise_errors(f"the source {shown}", _one_of_each(findings))
    if not files:
        raise DatasetError(f"{shown} holds no files with rows")
    _warn_of_columns_given_twice(files)
    return [replace(file, partitions=_not_in_itself(file)) for file in files]


def _one_of_each(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the first finding of each message, with the number of its files."""
    by_message: dict[str, list[Finding]] = {}
    for finding in findings:
        by_message.setdefault(finding.message, []).append(finding)
    for message, same in by_message.items():
        more = f" (so are {len(same) - 1} more files)" if len(same) > 1 else ""
        yield Finding("error", same[0].file, message + more)


def _not_in_itself(file: TableFile) -> dict[str, str | None]:
    return {name: value for name, value in file.partitions.items() if name not in file.header}


def _warn_of_columns_given_twice(files: Sequence[TableFile]) -> None:
    twice = [file for file in files if {*file.partitions} & {*file.header} & {*file.columns}]
    if twice:
        names = sorted({*twice[0].partitions} & {*twice[0].header} & {*twice[0].columns})
        logger.warning(
            "%s: the columns %s are in the file and in the name of its folder; the file's are read"
            " (%d files)",
            redacted(twice[0].path),
            ", ".join(map(repr, names)),
            len(twice),
        )


def _filesystem(source: str) -> tuple[FileSystem, str]:
    """Return the file system of a source, by pyarrow or else by fsspec, and the path there."""
    if not re.match(r"^\w+://", source):
        path = Path(source).expanduser().absolute()
        filesystem, _ = FileSystem.from_uri(path.as_uri())
        return filesystem, str(path)  # as_uri quotes what globs need
    try:
        return FileSystem.from_uri(_uri(source))
    except pa.ArrowInvalid:
        found, path = fsspec.core.url_to_fs(source)
        return PyFileSystem(FSSpecHandler(found)), path


def _uri(source: str) -> str:
    """Quote what names and globs may have, but a URI may not; bound the time of Google's retries.

    A question mark begins the settings, as in ``?region=eu-west-1``, or is part of a glob.
    """
    uri = quote(re.sub(r"\?(?!\w+=)", "%3F", source), safe="%:/?@!$&'()*+,;=~")
    if GOOGLE.match(uri):
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds={GOOGLE_RETRIES_S}"
    return uri


def _list(filesystem: FileSystem, path: str, source: str) -> list[str]:
    """Return the files that ``path`` names, in the order of their names."""
    kind = filesystem.get_file_info(path).type
    _refuse_logs_above(filesystem, PurePosixPath(path))
    if kind == FileType.File:
        return [path]
    if kind == FileType.Unknown:
        raise DatasetError(f"{source} is a pipe or a device; save its content to a file first")
    parts = PurePosixPath(path).parts
    wild = [row for row, part in enumerate(parts) if re.search(r"[*?\[]", part)]
    if kind == FileType.NotFound and not wild:
        raise DatasetError(f"there is no file or folder {source}")
    is_glob = bool(wild) and kind == FileType.NotFound
    root = str(PurePosixPath(*parts[: wild[0]])) if is_glob else path
    selector = FileSelector(root, allow_not_found=True, recursive=True)
    below = [file.path for file in filesystem.get_file_info(selector) if file.type == FileType.File]
    shown = [file for file in below if not _is_hidden(PurePosixPath(file).relative_to(root))]
    found = sorted(file for file in shown if (_fits(file, path) if is_glob else _format(file)))
    _refuse_logs(found, below)
    if not found:
        raise DatasetError(f"{source} holds no files ({', '.join(FORMATS)})")
    if not is_glob and (others := sorted(set(shown) - set(found))):
        message = "%s: %d files of other kinds are not read, such as %s"
        logger.warning(message, redacted(source), len(others), others[0])
    return found


def _is_hidden(path: PurePosixPath) -> bool:
    """Return whether a part begins with a dot or an underscore, and is not a partition."""
    return any(part[0] in "._" and not PARTITION.match(part) for part in path.parts)


def _fits(path: str, pattern: str) -> bool:
    """Return whether a glob matches; ``*`` does not cross folders, as in a shell."""
    same_depth = path.count("/") == pattern.count("/")
    return same_depth and PurePosixPath(path).match(pattern)


def _refuse_logs(found: Sequence[str], below: Sequence[str]) -> None:
    """Refuse files that lie in a table with a log, which may have removed some of them."""
    tables: dict[str, str] = {}
    for file in below:
        if match := ICEBERG.match(file):
            tables[match[1] or ""] = "Iceberg"
        for log, name in LOGS.items():
            table, inside, _ = f"/{file}".partition(f"/{log}/")
            if inside:
                tables[table[1:]] = name
    for table, name in tables.items():
        if any(file.startswith(f"{table}/") for file in found):
            raise _has_log(table, name)


def _refuse_logs_above(filesystem: FileSystem, path: PurePosixPath) -> None:
    """Refuse a part of a table with a log: a file, a partition, or its folder of data.

    Who may read a part of a store only may be denied to look above it; then that is logged.
    """
    for table in path.parents:
        try:
            log = _log_of(filesystem, table)
        except Exception as error:  # each store's library has its own
            message = "%s: cannot see whether it has a log of which files are alive (%s)"
            logger.warning(message, table, redacted(first_line_of(error)))
            return
        if log:
            raise _has_log(str(table), log)
        if table.name != "data" and not PARTITION.match(table.name):
            return


def _log_of(filesystem: FileSystem, table: PurePosixPath) -> str | None:
    for log, name in LOGS.items():
        if filesystem.get_file_info(str(table / log)).type == FileType.Directory:
            return name
    listed = FileSelector(str(table / "metadata"), allow_not_found=True)
    is_iceberg = any(ICEBERG.match(file.path) for file in filesystem.get_file_info(listed))
    return "Iceberg" if is_iceberg else None


def _has_log(table: str, name: str) -> DatasetError:
    return DatasetError(
        f"{table} is a {name} table: its log says which of its files are alive; export the rows as"
        " parquet with a reader of its format"
    )


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _format(path: str) -> str | None:
    plain = PurePosixPath(path).with_suffix("") if _suffix(path) in COMPRESSIONS else path
    return FORMATS.get(_suffix(str(plain)))


def _open(
    filesystem: FileSystem, path: str, columns: tuple[str, ...], *, alone: bool
) -> Iterator[TableFile]:
    """Look at a file's header; yields it, or nothing if it is an empty one of several."""
    kind = _format(path)
    if kind is None:
        known = ", ".join(FORMATS)
        raise DatasetError(f"unknown suffix; known are {known}, for text also with .gz, .bz2, .zst")
    if not alone and not filesystem.get_file_info(path).size:
        return
    file = TableFile(filesystem, path, kind, COMPRESSIONS.get(_suffix(path)))
    header = _header(file)
    if header is None:
        if alone:
            raise DatasetError("its first line, which should name the columns, is empty")
        return
    partitions = _partitions(path)
    header = as_asked(header, columns)
    if twice := [name for name in columns if header.count(name) > 1]:
        raise DatasetError(f"has several columns {', '.join(map(repr, twice))}; rename the others")
    missing = [name for name in columns if name not in header and name not in partitions]
    if missing and kind != "jsonl":
        raise DatasetError(
            f"has no column {', '.join(map(repr, missing))}; it has"
            f" {', '.join([*map(_shown, header), *partitions])}"
        )
    yield replace(file, header=header, columns=columns, partitions=partitions)


def _header(file: TableFile) -> tuple[str, ...] | None:
    """Return a file's columns; None if it has not a single byte of text."""
    if file.format == "parquet":
        with open_parquet(file.path, file.filesystem) as parquet:
            return tuple(parquet.schema_arrow.names)
    with file.open() as stream:
        start = read_start(stream)
    if start is None:
        return None
    return fields_of(start) if file.format == "jsonl" else header_of(start, file.format)


def _partitions(path: str) -> dict[str, str | None]:
    matches = filter(None, map(PARTITION.match, PurePosixPath(path).parent.parts))
    return {match[1]: None if match[2] == NO_PARTITION else unquote(match[2]) for match in matches}


def as_asked(header: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Rename columns whose names differ from those asked for by white space only."""
    asked = {" ".join(name.split()): name for name in columns if name not in header}
    return tuple(asked.get(" ".join(name.split()), name) for name in header)


def _shown(name: str) -> str:
    return name if name.isprintable() and name == name.strip() else repr(name)
