"""Columns whose cells are lists, such as the ads of each query."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Int64s


def list_entries(lists: pa.Array) -> tuple[Int64s, pa.Array]:
    """Flatten lists (n,) to the row of each entry and the entries, both (entries,)."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    return np.repeat(np.arange(len(lists)), lengths), lists.flatten()


def click_pairs(queries: pa.RecordBatch) -> tuple[Int64s, Int64s]:
    """Return the query id and the ad id of each click, both (clicks,)."""
    rows, ad_ids = list_entries(queries["ad_ids"])
    return queries["query_id"].to_numpy()[rows], ad_ids.to_numpy()
