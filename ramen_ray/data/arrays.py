"""Array types for signatures, and Arrow columns of lists as arrays."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Booleans = NDArray[np.bool_]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


def list_entries(lists: pa.Array) -> tuple[Int64s, pa.Array]:
    """Flatten lists (n,) to the row of each entry and the entries, both (entries,)."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return np.repeat(np.arange(len(lists)), lengths), lists.flatten()


def to_lists(entries: NDArray[Any] | pa.Array, lengths: NDArray[Any]) -> pa.ListArray:
    """Cut entries (entries,) into lists of these lengths (n,)."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(entries))


def click_pairs(queries: pa.RecordBatch | pa.Table) -> tuple[Int64s, Int64s]:
    """Return the query id and the ad id of each click, both (clicks,)."""
    rows, ad_ids = list_entries(queries["ad_ids"])
    return queries["query_id"].to_numpy()[rows], ad_ids.to_numpy()


def best_of_each(groups: NDArray[Any], k: int, *keys: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Return the first k rows of each group (rows,) in order of ``keys``, and ranks from 0.

    Lower values of the keys (rows,) come first, and each key breaks the ties of those before. Rows
    and ranks (kept,) come by group, then by rank.
    """
    order = np.lexsort((*reversed(keys), groups))
    ordered = groups[order]
    ranks = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return order[ranks < k], ranks[ranks < k]
