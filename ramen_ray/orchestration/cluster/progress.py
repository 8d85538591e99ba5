"""Lines that say how far long work is, and how long the rest will take."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

logger = logging.getLogger(__name__)

FIRST_LINE_S, BETWEEN_LINES_S = 5.0, 20.0

Part = TypeVar("Part")


def with_time_left(
    parts: Iterable[Part], size_of: Callable[[Part], int], total: int, what: str
) -> Iterator[Part]:
    """Pass on parts of work as they are done, and log a line after five seconds and now and again.

    The first part does not count for the time left, as processes start before it.

    Args:
        parts: what is done, part by part.
        size_of: how much of ``total`` a part is.
        total: the size of all parts.
        what: what is done, as in "searched".
    """
    line_at, done = time.monotonic() + FIRST_LINE_S, 0
    before, since = 0, None
    for part in parts:
        yield part
        done, now = done + size_of(part), time.monotonic()
        if since is None:
            before, since = done, now
        elif now >= line_at and done < total:
            left = (total - done) * (now - since) / (done - before)
            logger.info("%s %d of %d texts, about %.0f s left", what, done, total, left)
            line_at = now + BETWEEN_LINES_S
