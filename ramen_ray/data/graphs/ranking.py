"""The heaviest rows of each group."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s


def heaviest(
    groups: NDArray[Any], weights: NDArray[np.floating[Any]], ties: NDArray[Any], k: int
) -> Int64s:
    """Return the rows (kept,) of the k heaviest of each group, by group, the heaviest first.

    Args:
        groups: (rows,) the group of each row.
        weights: (rows,) its weight.
        ties: (rows,) breaks ties: of equal weights, the row with the lower number comes first.
        k: rows of a group, at most.
    """
    order = np.lexsort((ties, -weights, groups))
    ordered = groups[order]
    return order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < k]
