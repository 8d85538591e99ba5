"""Work that takes long: say how far it is, or do it one item ahead in a thread."""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Event, Thread
from typing import TypeVar

FIRST_LINE_S = 5.0
BETWEEN_LINES_S = 20.0
BETWEEN_LOOKS_S = 0.5

Item = TypeVar("Item")
logger = logging.getLogger(__name__)


@cache
def warn_once(line: str) -> None:
    """Log a warning that others of this process's runs would repeat."""
    logger.warning("%s", line)


class Pace:
    """Says when a line is due, and estimates the time left from how fast work was done so far."""

    def __init__(self) -> None:
        """Begin: the first line is due in five seconds."""
        self._next_line = time.monotonic() + FIRST_LINE_S
        self._first: tuple[float, float] | None = None

    def is_due(self) -> bool:
        """Say whether a line is due; if it is, the next is due in twenty seconds."""
        now = time.monotonic()
        if now < self._next_line:
            return False
        self._next_line = now + BETWEEN_LINES_S
        return True

    def seconds_left(self, done: float, total: float) -> float | None:
        """Return the seconds left; None until ``done`` has grown. If it has shrunk, begin anew."""
        now = time.monotonic()
        if self._first is None or done < self._first[0]:
            self._first = done, now
        before, at = self._first
        return (total - done) * (now - at) / (done - before) if done > before else None


@contextmanager
def in_background(work: Callable[[Event], None]) -> Iterator[None]:
    """Do ``work`` in a thread during the block; the event is set when the block ends."""
    ended = Event()
    thread = Thread(target=work, args=[ended], daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def logged_progress(what: str, share_done: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    """Log how long the block has taken, and the time left, after five seconds and now and again.

    ``share_done`` returns the share that is done, in [0, 1]; 0 if it is not known.
    """
    started = time.monotonic()
    pace = Pace()

    def tell(ended: Event) -> None:
        while not ended.wait(BETWEEN_LOOKS_S):
            share = share_done()
            # before anything is done, processes start
            seconds = pace.seconds_left(share, 1) if share else None
            if pace.is_due():
                rest = "" if seconds is None else f", about {seconds:.0f} s left"
                logger.info("%s: %.0f s%s", what, time.monotonic() - started, rest)

    with in_background(tell):
        yield


def logged_blocks(
    what: str, blocks: Iterable[Item], size_of: Callable[[Item], int], total: int
) -> Iterator[Item]:
    """Pass on blocks as they are done, :func:`logged_progress` by their sizes of ``total``."""
    done = 0
    with logged_progress(what, lambda: done / total):
        for block in blocks:
            yield block
            done += size_of(block)


def prefetched(items: Iterable[Item]) -> Generator[Item, None, None]:
    """Yield ``items`` in order; a thread makes the next one while the caller has the last.

    The thread ends with the iteration; close the iterator if it may be left early.
    """
    source = iter(items)
    end = object()
    with ThreadPoolExecutor(1, "prefetched") as thread:
        coming = thread.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, source, end)
            yield item  # type: ignore[misc]
