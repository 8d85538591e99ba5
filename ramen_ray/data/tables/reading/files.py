"""Find the files of a user's table: a file, a folder or a glob, on a disk or in a store."""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

import fsspec
import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, FSSpecHandler, PyFileSystem

from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.errors import DatasetError
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.tables.reading.formats import COMPRESSIONS, FORMATS, TableFile
from ramen_ray.data.tables.reading.lines import read_header
from ramen_ray.errors import first_line_of, redacted

logger = logging.getLogger(__name__)

LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""Folders that say which files of a table are alive."""
ICEBERG = re.compile(r"^(?:(.*)/)?metadata/[^/]*\.metadata\.json$")
PARTITION = re.compile(r"^([^=/]+)=(.*)$")
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
GOOGLE = re.compile(r"^(gs|gcs)://(?!.*[?&]retry_limit_seconds=)")
GOOGLE_RETRIES_S = 15
"""How long Google's library tries again; by default a quarter of an hour, also where no network or
no credentials are."""


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
    except UnicodeError as error:
        raise DatasetError(f"{shown!r}: a name is not UTF-8; rename the file or folder") from error
    except (pa.ArrowException, OSError, ValueError, ImportError) as error:
        if isinstance(error, DatasetError):
            raise
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
    return files


def _one_of_each(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the first finding of each message, with the number of its files."""
    by_message: dict[str, list[Finding]] = {}
    for finding in findings:
        by_message.setdefault(finding.message, []).append(finding)
    for message, same in by_message.items():
        more = f" (so are {len(same) - 1} more files)" if len(same) > 1 else ""
        yield Finding("error", same[0].file, message + more)


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
                tables[table.removeprefix("/") if not file.startswith("/") else table[1:]] = name
    for table, name in tables.items():
        if any(file.startswith(f"{table}/") for file in found):
            raise _has_log(table, name)


def _refuse_logs_above(filesystem: FileSystem, path: PurePosixPath) -> None:
    """Refuse a part of a table with a log: a file, a partition, or its folder of data."""
    for table in path.parents:
        for log, name in LOGS.items():
            if filesystem.get_file_info(str(table / log)).type == FileType.Directory:
                raise _has_log(str(table), name)
        listed = FileSelector(str(table / "metadata"), allow_not_found=True)
        if any(ICEBERG.match(file.path) for file in filesystem.get_file_info(listed)):
            raise _has_log(str(table), "Iceberg")
        if table.name != "data" and not PARTITION.match(table.name):
            return


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
    kind, compression = _format(path), COMPRESSIONS.get(_suffix(path))
    if kind is None:
        known = ", ".join(FORMATS)
        raise DatasetError(f"unknown suffix; known are {known}, for text also with .gz, .bz2, .zst")
    if not alone and not filesystem.get_file_info(path).size:
        return
    file = TableFile(filesystem, path, kind, compression)
    if kind == "parquet":
        with open_parquet(path, filesystem) as parquet:
            header: tuple[str, ...] | None = tuple(parquet.schema_arrow.names)
    else:
        header = read_header(file)
    if header is None:
        if alone:
            raise DatasetError("its first line, which should name the columns, is empty")
        return
    partitions = _partitions(path)
    header = _as_asked(header, columns)
    if twice := [name for name in columns if header.count(name) > 1]:
        raise DatasetError(f"has several columns {', '.join(map(repr, twice))}; rename the others")
    missing = [name for name in columns if name not in header and name not in partitions]
    if missing and (kind != "jsonl"):
        raise DatasetError(
            f"has no column {', '.join(map(repr, missing))}; it has"
            f" {', '.join([*map(_shown, header), *partitions])}"
        )
    of_folders = {name: value for name, value in partitions.items() if name not in header}
    yield TableFile(filesystem, path, kind, compression, header, columns, of_folders)


def _partitions(path: str) -> dict[str, str | None]:
    matches = filter(None, map(PARTITION.match, PurePosixPath(path).parent.parts))
    return {match[1]: None if match[2] == NO_PARTITION else unquote(match[2]) for match in matches}


def _as_asked(header: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
    """Rename columns whose names differ from those asked for by white space only."""
    asked = {" ".join(name.split()): name for name in columns if name not in header}
    return tuple(asked.get(" ".join(name.split()), name) for name in header)


def _shown(name: str) -> str:
    return name if name.isprintable() and name == name.strip() else repr(name)
