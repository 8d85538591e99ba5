"""Count the clicks and edges of every query, ad and anchor, and sum them up as statistics.

The dataset must be free of errors (:func:`ramen_ray.data.checks.validation.check`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import LOW
from ramen_ray.data.store.schemas import JUDGED, NODE_TABLES, SPLITS


@dataclass(frozen=True)
class ClickCounts:
    """How many clicks of a split each query, in row order, and each ad has."""

    per_query: Int64s
    per_ad: Int64s
    weight: float | None  # the sum of the clicks' weights, if the split has any


@dataclass(frozen=True)
class EdgeCounts:
    """How many edges of an anchor set each train query, ad or anchor has; 0 without edges."""

    per_query: Int64s
    queries_per_anchor: Int64s
    per_ad: Int64s
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
    counts: list[Int64s] = []
    for side, nodes in NODE_TABLES.items():
        table = f"edges/{anchor_set}/{side}"
        ends = (nodes, f"anchors/{anchor_set}")
        of_node, of_anchor = (np.zeros(dataset.num_rows(end), dtype=np.int64) for end in ends)
        if dataset.has(table):
            for batch in dataset.batches(table, [f"{side}_id", "anchor_id"]):
                np.add.at(of_node, batch[0].to_numpy(), 1)
                np.add.at(of_anchor, batch[1].to_numpy(), 1)
        counts += [of_node, of_anchor]
    return EdgeCounts(*counts)


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
        "clicks_per_query": share_of(num_clicks["train"], num_nodes["query"]),
        "queries_per_ad": share_of(num_clicks["train"], num_nodes["ad"]),
        "share_ads_without_click": share_of(int((per_ad == 0).sum()), num_nodes["ad"]),
        "share_ads_with_one_click": share_of(int((per_ad == 1).sum()), num_nodes["ad"]),
    }
    for table in filter(dataset.has, JUDGED):
        split = table.removeprefix("judged/")
        grades = dataset.read(table)["grade"]
        statistics[f"num_{split}_judgements"] = len(grades)
        statistics[f"num_{split}_low_judgements"] = pc.sum(pc.less(grades, LOW)).as_py()
    for name in dataset.anchor_sets:
        statistics[f"{name}_num_anchors"] = dataset.num_rows(f"anchors/{name}")
        for side, count in num_nodes.items():
            edges = f"edges/{name}/{side}"
            num_edges = dataset.num_rows(edges) if dataset.has(edges) else 0
            statistics[f"{name}_anchors_per_{side}"] = share_of(num_edges, count)
    return {key: float(value) for key, value in statistics.items()}


def share_of(part: int, whole: int) -> float:
    """Return a part divided by the whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def sample_ids(num_rows: int, size: int, seed: int) -> list[int]:
    """Draw ``size`` of the ids of a table, or all if there are fewer; ascending."""
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(num_rows, min(size, num_rows), replace=False)).tolist()


def texts_by_id(dataset: Dataset, table: str, ids: Iterable[int]) -> dict[int, str]:
    """Return the texts of the rows with some ids, by id."""
    rows = dataset.rows_with_ids(table, ids)
    return dict(zip(rows[0].to_pylist(), rows["text"].to_pylist(), strict=True))
