"""The lock of a folder that one process at a time may write."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder until the block ends; yields False if another process has it.

    Raises:
        OSError: nothing can be written there.
    """
    try:
        lock = FileLock(folder / LOCK_FILE).acquire(blocking=False)
    except Timeout:
        yield False
        return
    with lock:
        yield True
