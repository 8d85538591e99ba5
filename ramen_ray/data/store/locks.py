"""Locks of folders: of what a process writes into, and of what must not change while it is read."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


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
