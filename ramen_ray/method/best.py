"""The best rows of each group."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s


def best_of_each(groups: NDArray[Any], k: int, *keys: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Return the first k rows of each group (rows,) in order of ``keys``, and ranks from 0.

    Lower values of the keys (rows,) come first, and each key breaks the ties of those before. Rows
    and ranks (kept,) come by group, then by rank.
    """
    order = np.lexsort((*reversed(keys), groups))
    ordered = groups[order]
    ranks = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return order[ranks < k], ranks[ranks < k]
