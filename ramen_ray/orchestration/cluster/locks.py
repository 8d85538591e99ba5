"""Work that only one process at a time does, on whatever machine of a shared folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Wait until no other process holds ``file``, and hold it; made if it is not there."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def held_if_free(file: Path) -> Iterator[bool]:
    """Hold ``file`` if no other process does, and give whether that is so."""
    with file.open("w") as lock:
        yield _take(lock.fileno())


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
