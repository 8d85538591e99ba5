"""Files and folders that appear whole or not at all, scratch folders, and the lock of a folder."""

import glob
import logging
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ramen_ray.errors import DatasetError

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

    What killed processes have left there is told, as another may be writing it. Raises a
    DatasetError if ``path`` exists already, or cannot be written.
    """
    path = Path(path).absolute()
    if path.exists():
        raise DatasetError(f"{path} exists already; move it away or choose another output")
    for left in left_behind(path):
        message = "%s: left by a killed process, unless another writes there now; delete it"
        logger.warning(message, left)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _unused_name(path)
        aside.mkdir()
    except OSError as error:
        raise DatasetError(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        yield aside
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def left_behind(path: Path) -> list[Path]:
    """List what :func:`new_folder` and :func:`whole_file` of killed processes left of ``path``."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}-{'[0-9a-f]' * 8}"))


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


def _unused_name(path: Path, within: Path | None = None) -> Path:
    return (within or path.parent) / f".{path.name}-{secrets.token_hex(4)}"
