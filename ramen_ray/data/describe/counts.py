"""Count the clicks and edges of every query, ad and anchor, as a stream without texts.

The dataset must be free of errors (:func:`ramen_ray.data.checks.check`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES, SPLITS


@dataclass(frozen=True)
class ClickCounts:
    """The clicks per query (queries,), in row order, and per ad (ads,), of a split.

    ``weight`` is the sum of the clicks' weights; None if the split has none.
    """

    per_query: Int64s
    per_ad: Int64s
    weight: float | None


@dataclass(frozen=True)
class EdgeCounts:
    """The edges of an anchor set at both ends, (train queries,), (ads,) and twice (anchors,) int64.

    All are zero on a side without edges.
    """

    per_query: Int64s
    per_ad: Int64s
    queries_per_anchor: Int64s
    ads_per_anchor: Int64s

    @property
    def per_anchor(self) -> Int64s:
        """(anchors,) int64, of both sides together."""
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
    (per_query, queries_per_anchor), (per_ad, ads_per_anchor) = (
        _count_side(dataset, anchor_set, side) for side in NODE_TABLES
    )
    return EdgeCounts(per_query, per_ad, queries_per_anchor, ads_per_anchor)


def _count_side(dataset: Dataset, anchor_set: str, side: str) -> tuple[Int64s, Int64s]:
    table, ends = f"edges/{anchor_set}/{side}", (NODE_TABLES[side], f"anchors/{anchor_set}")
    per_node, per_anchor = (np.zeros(dataset.num_rows(end), dtype=np.int64) for end in ends)
    if dataset.has(table):
        for batch in dataset.batches(table, [f"{side}_id", "anchor_id"]):
            for ids, counts in zip(batch.columns, (per_node, per_anchor), strict=True):
                np.add.at(counts, ids.to_numpy(), 1)
    return per_node, per_anchor


def dataset_statistics(
    dataset: Dataset, clicks: Mapping[str, ClickCounts] | None = None
) -> dict[str, float]:
    """Count queries, ads, clicks and edges, with the averages of RAMEN's Table 9.

    These are over all train queries (documents there) and all ads (labels), with clicks or without.
    ``clicks`` are those of the splits, if they have been counted.
    """
    clicks = clicks or {split: count_clicks(dataset, split) for split in SPLITS}
    queries = {split: len(clicks[split].per_query) for split in SPLITS}
    num_clicks = {split: int(clicks[split].per_ad.sum()) for split in SPLITS}
    num_nodes = {side: dataset.num_rows(table) for side, table in NODE_TABLES.items()}
    per_ad = clicks["train"].per_ad
    statistics: dict[str, float] = {
        **{f"num_{split}_queries": count for split, count in queries.items()},
        **{f"num_{split}_clicks": count for split, count in num_clicks.items()},
        "num_ads": num_nodes["ad"],
        "clicks_per_query": _ratio(num_clicks["train"], num_nodes["query"]),
        "queries_per_ad": _ratio(num_clicks["train"], num_nodes["ad"]),
        "share_ads_without_click": _ratio(int((per_ad == 0).sum()), num_nodes["ad"]),
        "share_ads_with_one_click": _ratio(int((per_ad == 1).sum()), num_nodes["ad"]),
    }
    for name in dataset.anchor_sets:
        statistics[f"{name}_num_anchors"] = dataset.num_rows(f"anchors/{name}")
        for side, count in num_nodes.items():
            edges = f"edges/{name}/{side}"
            num_edges = dataset.num_rows(edges) if dataset.has(edges) else 0
            statistics[f"{name}_anchors_per_{side}"] = _ratio(num_edges, count)
    return {key: float(value) for key, value in statistics.items()}


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
