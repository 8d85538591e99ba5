"""Made things: files and folders that are whole or absent, and checked where they are read again.

A thing is made under another name and renamed when it is whole: :func:`whole_file`,
:func:`new_folder`. What several processes need, one of them makes: :func:`made_once`. Its checksums
say later whether it is as it was written: :func:`check_intact`. Locks are of folders that a process
writes into, :func:`folder_lock`, and of what must not change while it is read, :func:`in_use`. What
is made of files is known by a hash of what they contain: :func:`content_digest`.
"""

import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any

from filelock import FileLock, Timeout

from ramen_ray.errors import DatasetError, UserError

CHECKSUMS_FILE = "checksums-{}-of-{}.json"
BYTES_PER_READ = 1 << 20
OWNED = ".ramen_ray-"
CONTENT = "content"
"""Of :func:`owned_folder`: how the name begins of a folder with a lock, and that of one in it."""

logger = logging.getLogger(__name__)


class DamagedError(UserError):
    """A file is not as it was written."""


@contextmanager
def whole_file(path: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces ``path`` when the block ends.

    Its name is unique, so that two processes can write the same file at once. It is beside ``path``
    or ``within`` a folder on the same disk; a killed process leaves it there.
    """
    aside = (within or path.parent) / f".{path.name}-{secrets.token_hex(4)}"
    aside.touch(exist_ok=False)
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(file: Path, content: object) -> None:
    """Write plain values as a file of JSON, whole or not at all."""
    with whole_file(file) as aside:
        aside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_json(file: Path) -> Any:
    """Return what a file of JSON has; a ValueError if it is damaged."""
    return json.loads(file.read_text(encoding="utf-8"))


@contextmanager
def owned_folder(within: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder ``within`` one, by default that of the system for temporary files.

    It is removed when the block ends, with what is beside it; if its process was killed, when
    another calls this there.
    """
    place = Path(gettempdir()) if within is None else within
    for left in (content.parent for content in place.glob(f"{OWNED}*/{CONTENT}")):
        with suppress(OSError), folder_lock(left) as is_unused:  # it may be another user's
            if is_unused:
                logger.info("%s: left by a killed process, and removed", left)
                shutil.rmtree(left, ignore_errors=True)
    owned = Path(mkdtemp(prefix=OWNED, dir=place))
    try:
        with folder_lock(owned):
            content = owned / CONTENT
            content.mkdir()  # now that it is locked: what has it, and no lock, was left behind
            yield content
    finally:
        shutil.rmtree(owned, ignore_errors=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder, which is ``path`` when the block ends without an error.

    Raises a DatasetError if ``path`` exists already, or cannot be written.
    """
    path = Path(path).absolute()
    if path.exists():
        raise DatasetError(f"{path} exists already; move it away or choose another output")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = stack.enter_context(owned_folder(path.parent))
        except OSError as error:
            raise DatasetError(f"cannot write to {path.parent}: {error.strerror}") from error
        yield aside
        aside.rename(path)


@contextmanager
def made_once(folder: Path, like: Path | None = None) -> Iterator[Path | None]:
    """Yield an empty folder to make ``folder`` in, or None if it is there and intact.

    When the block ends without an error, it gets checksums and its name. A process waits for
    another that makes the same. A damaged folder is removed before, with a warning, and so is one
    that differs from ``like``, of which it should be a copy.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if like is not None and _lists(folder) != _lists(like):
            shutil.rmtree(folder, ignore_errors=True)
        if is_intact(folder, "it is made again"):
            yield None
            return
        with owned_folder(folder.parent) as aside:
            yield aside
            if not checksum_files(aside):
                write_checksums(aside)
            aside.rename(folder)


def write_checksums(folder: Path, writer: int = 0, num_writers: int = 1) -> None:
    """Note the size and checksum of all files below ``folder``, of each of several writers."""
    written = folder / CHECKSUMS_FILE.format(writer + 1, num_writers)
    written.unlink(missing_ok=True)  # it may be noted again
    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    with ThreadPoolExecutor() as threads:
        noted = threads.map(lambda name: _size_and_checksum(folder / name), names)
        content = dict(sorted(zip(names, noted, strict=True)))
    written.write_text(json.dumps(content, indent=1) + "\n")


def checksum_files(folder: Path) -> list[Path]:
    """List the files that :func:`write_checksums` wrote into ``folder``."""
    return sorted(folder.glob(CHECKSUMS_FILE.format("[0-9]*", "[0-9]*")))


def find_damage(folder: Path) -> str | None:
    """Name a file that is not as :func:`write_checksums` found it; None if all are."""
    lists = _lists(folder)
    num_writers = int(min(lists).removesuffix(".json").rpartition("-")[2]) if lists else 1
    if len(lists) < num_writers:
        return f"{folder} is incomplete: {len(lists)} of {num_writers} lists of checksums"
    noted: dict[str, object] = {}
    for name, content in lists.items():
        try:
            noted.update(json.loads(content).items())
        except (ValueError, AttributeError):
            return f"{folder / name} is damaged"
    with ThreadPoolExecutor() as threads:
        changed = threads.map(lambda name: _change(folder / name, noted[name]), noted)
        return next(filter(None, changed), None)


def check_intact(folder: Path) -> None:
    """Raise a DamagedError if a file is not as :func:`write_checksums` found it."""
    if damage := find_damage(folder):
        raise DamagedError(damage)


def is_intact(folder: Path, otherwise: str) -> bool:
    """Return whether ``folder`` is intact; a damaged one is removed, and ``otherwise`` logged."""
    if not folder.is_dir():
        return False
    if damage := find_damage(folder):
        logger.warning("warning: %s: %s", damage, otherwise)
        shutil.rmtree(folder)
    return not damage


def _lists(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in checksum_files(folder)}


def _size_and_checksum(file: Path) -> list[int]:
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(BYTES_PER_READ):
            checksum = zlib.crc32(block, checksum)
        return [stream.tell(), checksum]


def _change(file: Path, noted: object) -> str | None:
    try:
        is_same = _size_and_checksum(file) == noted
    except OSError as error:
        return f"{file} cannot be read ({error.strerror})"
    return None if is_same else f"{file} has changed since it was written"


@contextmanager
def folder_lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, which can be written; yields False if another process has it."""
    try:
        lock = FileLock(folder / ".lock").acquire(blocking=False)
    except Timeout:
        yield False
        return
    with lock:
        yield True


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Refuse :func:`not_in_use` of a folder, which may be read-only, until the block ends."""
    with _opened(folder) as number:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(number, fcntl.LOCK_SH)
        yield


@contextmanager
def not_in_use(folder: Path) -> Iterator[None]:
    """Keep a folder to change it, and jobs from using it; a DatasetError if one does."""
    with _opened(folder) as number:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(
                f"{folder} is in use by a job, which would end with other data than it began with;"
                " run this again when that has ended, or change a copy"
            ) from None
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder, for a lock that is gone when this process is."""
    number = os.open(folder, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


FileContent = tuple[str, int, bytes]
"""A file's name, its number of bytes, and a hash of them."""


def content_digest(files: Iterable[tuple[str, Path]], algorithm: str = "blake2b") -> str:
    """Hash named files by what they contain, read as streams; their folder does not matter."""
    return digest_of(file_contents(files, algorithm))


def file_contents(
    files: Iterable[tuple[str, Path]], algorithm: str = "blake2b"
) -> Iterator[FileContent]:
    """Hash each of some named files."""
    for name, file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, algorithm).digest()
            yield name, file.stat().st_size, content


def digest_of(contents: Iterable[FileContent]) -> str:
    """Hash the content of files as one."""
    digest = hashlib.blake2b(digest_size=16)
    for name, size, content in contents:
        digest.update(f"{name}\0{size}\0".encode())
        digest.update(content)
    return digest.hexdigest()
