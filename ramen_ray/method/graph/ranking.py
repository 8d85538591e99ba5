"""The heaviest rows of each group."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s


def heaviest(
    groups: NDArray[Any], weights: NDArray[np.floating[Any]], ties: NDArray[Any], k: int
) -> Int64s:
    """Return the k heaviest rows of each group (kept,), by group, heaviest first.

    Args:
        groups: (rows,) the group of each row.
        weights: (rows,) the weight of each row.
        ties: (rows,) breaks ties: among equal weights, the lower number comes first.
        k: largest number of rows of a group.
    """
    order = np.lexsort((ties, -weights, groups))
    ordered = groups[order]
    return order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < k]
