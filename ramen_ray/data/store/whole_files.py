"""Files and folders that appear whole or not at all, scratch folders, and the lock of a folder."""

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from filelock import FileLock, Timeout

from ramen_ray.errors import DatasetError

OWNED, CONTENT = ".ramen_ray-", "content"
"""Of :func:`owned_folder`: how the name begins of a folder with a lock, and that of one in it."""

logger = logging.getLogger(__name__)


@contextmanager
def whole_file(path: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces ``path`` when the block ends.

    Its name is unique, so that two processes can write the same file at once. It is beside ``path``
    or ``within`` a folder on the same disk; a killed process leaves it there.
    """
    aside = _unused_name(path, within)
    aside.touch(exist_ok=False)
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Build a folder beside its final place, and rename it when the block ends without an error.

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
def owned_folder(within: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder ``within`` one, by default that of the system for temporary files.

    It is removed when the block ends; if its process was killed, when another calls this there.
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
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder, and remove it; its user has locked what it belongs to."""
    shutil.rmtree(path, ignore_errors=True)  # left by a killed process
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


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
    """Refuse others :func:`unused` of a folder, which may be read-only, until the block ends."""
    with _opened(folder) as number:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(number, fcntl.LOCK_SH)
        yield


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Keep a folder to change it, and others from using it; yields False if a process uses it."""
    with _opened(folder) as number:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder, for a lock that is gone when this process is."""
    number = os.open(folder, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


def _unused_name(path: Path, within: Path | None = None) -> Path:
    return (within or path.parent) / f".{path.name}-{secrets.token_hex(4)}"
