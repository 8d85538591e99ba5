"""Count the clicks and edges of every query, ad and anchor, as a stream without texts.

The dataset must be free of errors (:func:`ramen_ray.data.checks.check`).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.dataset import Dataset


@dataclass(frozen=True)
class ClickCounts:
    """The clicks of a split.

    Attributes:
        per_query: (queries of the split,) int64, in row order.
        per_ad: (ads,) int64.
        weight: sum of the clicks' weights; None if the split has no weights.
    """

    per_query: Int64s
    per_ad: Int64s
    weight: float | None


@dataclass(frozen=True)
class EdgeCounts:
    """The edges of an anchor set, counted at both ends; all zero on a side without edges.

    Attributes:
        per_query: (train queries,) int64.
        per_ad: (ads,) int64.
        queries_per_anchor: (anchors,) int64.
        ads_per_anchor: (anchors,) int64.
    """

    per_query: Int64s
    per_ad: Int64s
    queries_per_anchor: Int64s
    ads_per_anchor: Int64s

    @property
    def per_anchor(self) -> Int64s:
        """(anchors,) int64, queries and ads together."""
        return self.queries_per_anchor + self.ads_per_anchor


def count_clicks(dataset: Dataset, split: str) -> ClickCounts:
    """Count the clicks of a split at both ends."""
    table = f"queries/{split}"
    columns = [name for name in ("ad_ids", "weights") if name in dataset.schema(table).names]
    per_query = [np.empty(0, dtype=np.int64)]
    per_ad = np.zeros(dataset.num_rows("ads"), dtype=np.int64)
    weight = 0.0
    for batch in dataset.batches(table, columns):
        ad_ids = batch.column("ad_ids")
        per_query.append(pc.list_value_length(ad_ids).to_numpy().astype(np.int64))
        np.add.at(per_ad, ad_ids.flatten().to_numpy(), 1)
        if "weights" in columns:
            weight += pc.sum(batch.column("weights").flatten()).as_py() or 0.0
    return ClickCounts(np.concatenate(per_query), per_ad, weight if "weights" in columns else None)


def count_edges(dataset: Dataset, anchor_set: str) -> EdgeCounts:
    """Count the edges of an anchor set at both ends."""
    num_anchors = dataset.num_rows(f"anchors/{anchor_set}")
    per_query, queries_per_anchor = _count_side(
        dataset, f"edges/{anchor_set}/query", dataset.num_rows("queries/train"), num_anchors
    )
    per_ad, ads_per_anchor = _count_side(
        dataset, f"edges/{anchor_set}/ad", dataset.num_rows("ads"), num_anchors
    )
    return EdgeCounts(per_query, per_ad, queries_per_anchor, ads_per_anchor)


def _count_side(
    dataset: Dataset, table: str, num_nodes: int, num_anchors: int
) -> tuple[Int64s, Int64s]:
    per_node = np.zeros(num_nodes, dtype=np.int64)
    per_anchor = np.zeros(num_anchors, dtype=np.int64)
    if dataset.has(table):
        columns = dataset.schema(table).names[:2]
        for batch in dataset.batches(table, columns):
            for ids, counts in zip(batch.columns, (per_node, per_anchor), strict=True):
                np.add.at(counts, ids.to_numpy(), 1)
    return per_node, per_anchor
