"""Work that is done one item ahead, in a thread."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item]) -> Generator[Item, None, None]:
    """Yield ``items`` in order; a thread makes the next one while the caller has the last.

    The thread ends with the iteration; close the iterator if it may be left early.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetched") as thread:
        coming = thread.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, source, end)
            yield item  # type: ignore[misc]
