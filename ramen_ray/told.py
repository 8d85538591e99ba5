"""Say how far something is that takes long."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TypeVar

FIRST_LINE_S, BETWEEN_LINES_S, BETWEEN_LOOKS_S = 5.0, 20.0, 0.5

Item = TypeVar("Item")
logger = logging.getLogger(__name__)


@contextmanager
def told(what: str, share_done: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    """Log how long the block has taken, and the time left, after five seconds and now and again.

    Args:
        what: what the block does.
        share_done: returns the share that is done, in [0, 1]; 0 if it is not known. The time until
            its first value above 0 does not count for the time left, as processes start in it.
    """
    ended, started = Event(), time.monotonic()

    def tell() -> None:
        first, next_line = (started, 0.0), started + FIRST_LINE_S
        while not ended.wait(BETWEEN_LOOKS_S):
            now, share = time.monotonic(), share_done()
            if not first[1]:
                first = now, share
            if now >= next_line:
                next_line = now + BETWEEN_LINES_S
                left = ""
                if share > first[1]:
                    seconds = (1 - share) * (now - first[0]) / (share - first[1])
                    left = f", about {seconds:.0f} s left"
                logger.info("%s: %.0f s%s", what, now - started, left)

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def told_of(
    what: str, blocks: Iterable[Item], size_of: Callable[[Item], int], total: int
) -> Iterator[Item]:
    """Pass on blocks as they are done, :func:`told` by their sizes of ``total``."""
    done = 0
    with told(what, lambda: done / total):
        for block in blocks:
            yield block
            done += size_of(block)
