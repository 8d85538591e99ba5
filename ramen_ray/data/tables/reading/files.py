"""Find the files of a user's table: a file, a folder or a glob, on a disk or in a store.

Of a Delta table these are the files of a version that are alive (by the extra ``delta``).
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

import fsspec
import pyarrow as pa
from pyarrow import fs

from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.tables.reading.table_file import (
    FORMATS,
    PARTITION,
    TableFile,
    open_file,
    suffixes,
)
from ramen_ray.errors import (
    DatasetError,
    first_line_of,
    printable,
    redacted_reason,
    shown_address,
)
from ramen_ray.naming import VERSIONED

logger = logging.getLogger(__name__)

LOGS = {
    "Delta": re.compile(r"^(.*)/_delta_log/"),
    "Iceberg": re.compile(r"^(.*)/metadata/[^/]*\.metadata\.json(?:\.gz)?$"),
}
"""Files that say which files of a table are alive."""
DELTA_LOG = "_delta_log"
GOOGLE = re.compile(r"^(gs|gcs)://(?!.*[?&]retry_limit_seconds=)")
GOOGLE_RETRIES_S = 15
"""How long Google's library tries again; by default a quarter of an hour, also where no network or
no credentials are."""


def find_files(
    source: str, columns: Sequence[str], advice: str = "", encoding: str = "utf-8"
) -> list[TableFile]:
    """Find the files of ``source``, in the order of their names, with these ``columns``.

    It is a file, a folder (all files below it that have a known suffix), or a glob; a path, or a
    URI such as ``s3://bucket/clicks/*.parquet``. Of a Delta table the live files are found, in the
    latest version or in that of ``FOLDER@v12``. Columns are in a file or its folders' names.
    Raises a DatasetError if there are no files, one cannot be opened or lacks a column (``advice``
    ends that message), a log beside them says which of them are alive, or Python does not know the
    ``encoding`` of text files.
    """
    _check_encoding(encoding)
    filesystem, listed = _listed(source)
    files: list[TableFile] = []
    faults: dict[str, list[str]] = {}
    for info in listed:
        try:
            file = open_file(TableFile(filesystem, info, encoding), tuple(columns), advice)
        except DatasetError as error:
            fault = str(error).removeprefix(f"{info.path}: ")
            faults.setdefault(fault, []).append(info.path)
        else:
            files += [file] if file else []
    if not files and not faults:
        faults["is empty"] = [listed[0].path]
    findings = []
    for fault, paths in faults.items():
        more = f" (so are {len(paths) - 1} more files)" if len(paths) > 1 else ""
        findings.append(Finding("error", paths[0], fault + more))
    raise_errors(f"the source {shown_address(source)}", findings)
    return files


def _check_encoding(name: str) -> None:
    """Raise a DatasetError if Python has no encoding of texts of this name."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):
        raise DatasetError(
            f"encoding {name!r} is not known; write it as utf-8, windows-1252 or shift_jis"
        ) from None


def pinned(settings: Any, *names: str) -> Any:
    """Name the versions of Delta tables, so that all reads are of one, and it is known later.

    The tables are in these fields of a dataclass, each an address, a dict of them, or None. Those
    of Delta tables become ``FOLDER@v12``. Raises a DatasetError if one cannot be opened.
    """
    changes: dict[str, Any] = {}
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, dict):
            changes[name] = {key: _with_version(source) for key, source in value.items()}
        elif value:
            changes[name] = _with_version(value)
    return replace(settings, **changes)


def _with_version(source: str) -> str:
    with _opening(source):
        delta = _delta_table(source)
        return source if delta is None else f"{delta[0]}@v{delta[1].version()}"


def _delta_table(source: str) -> tuple[str, Any] | None:
    """Return the folder of a Delta table, and the version that is named or else its latest."""
    places: list[tuple[str, int | None]] = [(source, None)]
    if versioned := VERSIONED.match(source):
        places.append((versioned[1], int(versioned[2])))
    for folder, version in places:
        filesystem, path = _filesystem(folder)
        log = filesystem.get_file_info(f"{path.rstrip('/')}/{DELTA_LOG}")
        if log.type == fs.FileType.Directory:
            return folder, _opened(folder, version)
    return None


def _listed(source: str) -> tuple[fs.FileSystem, list[fs.FileInfo]]:
    """Return the files of ``source``, in the order of their names, and what they are on."""
    with _opening(source):
        if (delta := _delta_table(source)) is not None:
            filesystem, path = _filesystem(delta[0])
            return filesystem, _alive(filesystem, path, *delta)
        filesystem, path = _filesystem(source)
        return filesystem, _list(filesystem, path, shown_address(source))


@contextmanager
def _opening(source: str) -> Iterator[None]:
    """Turn what a store raises while ``source`` is looked for into a DatasetError."""
    shown = shown_address(source)
    try:
        yield
    except DatasetError:
        raise
    except UnicodeError as error:
        raise DatasetError(f"{shown!r}: a name is not UTF-8; rename the file or folder") from error
    except Exception as error:  # each store's library has its own
        reason = redacted_reason(first_line_of(error), source)
        raise DatasetError(f"cannot open {shown}: {reason}") from None  # it may have a password


def _filesystem(source: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a source, by pyarrow or else by fsspec, and the path there."""
    if not source.strip():
        raise DatasetError("the name of a table is empty")
    if not re.match(r"^\w+://", source):
        path = Path(source).expanduser().absolute()
        filesystem, _ = fs.FileSystem.from_uri(path.as_uri())
        return filesystem, str(path)  # as_uri quotes what globs need
    # a question mark begins the settings, as in ?region=eu-west-1, or is part of a glob
    uri = quote(re.sub(r"\?(?!\w+=)", "%3F", source), safe="%:/?@!$&'()*+,;=~")
    if GOOGLE.match(uri):
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds={GOOGLE_RETRIES_S}"
    try:
        return fs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid:
        other, path = fsspec.core.url_to_fs(source)
        return fs.PyFileSystem(fs.FSSpecHandler(other)), path


def _list(filesystem: fs.FileSystem, path: str, source: str) -> list[fs.FileInfo]:
    """Return the files that ``path`` names, in the order of their names."""
    named = filesystem.get_file_info(path)
    if named.type == fs.FileType.File:
        return [named]
    if named.type == fs.FileType.Unknown:
        raise DatasetError(f"{source} is a pipe or a device; save its content to a file first")
    parts = PurePosixPath(path).parts
    wild = [row for row, part in enumerate(parts) if re.search(r"[*?\[]", part)]
    if named.type == fs.FileType.NotFound and (not wild or "**" in parts):
        hint = "; for files at any depth, give the folder above them" if wild else ""
        raise DatasetError(f"there is no file or folder {source}{hint}")
    is_glob = bool(wild) and named.type == fs.FileType.NotFound
    root = str(PurePosixPath(*parts[: wild[0]])) if is_glob else path
    selector = fs.FileSelector(root, allow_not_found=True, recursive=True)
    entries = filesystem.get_file_info(selector)
    below = [entry for entry in entries if entry.type != fs.FileType.Directory]
    if isinstance(filesystem, fs.LocalFileSystem):  # which passes over broken links
        links = filter(Path.is_symlink, Path(root).rglob("*"))
        broken = (str(link) for link in links if not link.exists())
        below += [fs.FileInfo(link, fs.FileType.NotFound) for link in broken]
    shown = [file for file in below if not _is_hidden(PurePosixPath(file.path).relative_to(root))]
    is_wanted = partial(_fits, pattern=path) if is_glob else _has_format
    wanted = sorted((file for file in shown if is_wanted(file.path)), key=lambda file: file.path)
    _refuse_logs(wanted, below)
    if not wanted:
        raise DatasetError(f"{source} holds no files ({', '.join(FORMATS)})")
    if odd := [file.path for file in wanted if file.type != fs.FileType.File]:
        raise DatasetError(f"{odd[0]} is a broken link, a pipe or a device; take it away")
    others = sorted({file.path for file in shown} - {file.path for file in wanted})
    if others and not is_glob:
        message = "%s: %s files of other kinds are not read, such as %s"
        logger.warning(message, *map(printable, (source, str(len(others)), others[0])))
    return wanted


def _is_hidden(path: PurePosixPath) -> bool:
    """Return whether a part begins with a dot or an underscore, and is not a partition."""
    return any(part[0] in "._" and not PARTITION.match(part) for part in path.parts)


def _has_format(path: str) -> bool:
    return suffixes(path)[0] in FORMATS


def _fits(path: str, pattern: str) -> bool:
    """Return whether a glob matches; ``*`` does not cross folders, as in a shell."""
    return path.count("/") == pattern.count("/") and PurePosixPath(path).match(pattern)


def _alive(filesystem: fs.FileSystem, path: str, folder: str, table: Any) -> list[fs.FileInfo]:
    """Return the files below ``path`` that a version of a Delta table has, by their names.

    Raises a DatasetError if it cannot be read by its files alone.
    """
    settings = table.metadata().configuration
    may_have_vectors = "deletionVectors" in (table.protocol().reader_features or [])
    if settings.get("delta.columnMapping.mode", "none") != "none":
        raise DatasetError(
            f"{shown_address(folder)} is a Delta table with column mapping, whose files have other"
            " names of columns; write a copy without (delta.columnMapping.mode none)"
        )
    if may_have_vectors and pa.table(table.deletion_vectors()).num_rows > 0:
        raise DatasetError(
            f"{shown_address(folder)} is a Delta table with deletion vectors, whose files have rows"
            " that are deleted; run REORG TABLE ... APPLY (PURGE) on it, or write a copy without"
        )
    live = {*pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()}
    if not live:
        raise DatasetError(f"{path}: this version of the Delta table has no files")
    named = sorted(f"{path.rstrip('/')}/{unquote(name)}" for name in live)
    files: list[fs.FileInfo] = filesystem.get_file_info(named)
    if lost := [file.path for file in files if file.type != fs.FileType.File]:
        raise DatasetError(f"{lost[0]} is gone, which this version of a Delta table has")
    return files


def _refuse_logs(wanted: Sequence[fs.FileInfo], below: Sequence[fs.FileInfo]) -> None:
    """Refuse files that lie in a table with a log, which may have removed some of them."""
    for name, log in LOGS.items():
        for table in {match[1] for file in below if (match := log.match(f"/{file.path}"))}:
            if any(f"/{file.path}".startswith(f"{table}/") for file in wanted):
                raise DatasetError(
                    f"{table[1:]} is a {name} table: its log says which of its files are alive;"
                    f" {'name its folder' if name == 'Delta' else 'export the rows as parquet'}"
                )


def _opened(folder: str, version: int | None) -> Any:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise DatasetError(
            f"{shown_address(folder)} is a Delta table, which takes a package to read: pip install "
            f"deltalake"
        ) from error
    try:
        return DeltaTable(folder, version)
    except Exception as error:  # whatever the library finds in a log or a store
        reason = redacted_reason(first_line_of(error), folder)
        raise DatasetError(
            f"{shown_address(folder)} is a Delta table, and cannot be read: {reason}"
        ) from None
