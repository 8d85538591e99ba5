"""Count the clicks and edges of every query, ad and anchor, and sum them up for a description.

The dataset must be free of errors (:func:`ramen_ray.data.checks.validation.check`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.describe.content import (
    Degrees,
    Distribution,
    Hub,
    PopularityGroup,
    SampleQuery,
    Share,
)
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import LOW
from ramen_ray.data.store.schemas import JUDGED, NODE_TABLES, SPLITS, TRAIN


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
        table, ends = f"edges/{anchor_set}/{side}", (nodes, f"anchors/{anchor_set}")
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
        "clicks_per_query": _ratio(num_clicks["train"], num_nodes["query"]),
        "queries_per_ad": _ratio(num_clicks["train"], num_nodes["ad"]),
        "share_ads_without_click": _ratio(int((per_ad == 0).sum()), num_nodes["ad"]),
        "share_ads_with_one_click": _ratio(int((per_ad == 1).sum()), num_nodes["ad"]),
    }
    for table in filter(dataset.has, JUDGED):
        split, grades = table.removeprefix("judged/"), dataset.read(table)["grade"]
        statistics[f"num_{split}_judgements"] = len(grades)
        statistics[f"num_{split}_low_judgements"] = pc.sum(pc.less(grades, LOW)).as_py()
    for name in dataset.anchor_sets:
        statistics[f"{name}_num_anchors"] = dataset.num_rows(f"anchors/{name}")
        for side, count in num_nodes.items():
            edges = f"edges/{name}/{side}"
            num_edges = dataset.num_rows(edges) if dataset.has(edges) else 0
            statistics[f"{name}_anchors_per_{side}"] = _ratio(num_edges, count)
    return {key: float(value) for key, value in statistics.items()}


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def node_degrees(train: ClickCounts, edges: Mapping[str, EdgeCounts]) -> dict[str, Degrees]:
    """Count how many nodes have how many train clicks, and edges of each anchor set."""
    degrees = {
        "clicks_per_query": Degrees("clicks", "query", Distribution.of(train.per_query)),
        "queries_per_ad": Degrees("clicks", "ad", Distribution.of(train.per_ad)),
    }
    for name, of_set in edges.items():
        for metric, per, values in (
            (f"{name}_anchors_per_query", "query", of_set.per_query),
            (f"{name}_anchors_per_ad", "ad", of_set.per_ad),
            (f"{name}_nodes_per_anchor", "anchor", of_set.per_anchor),
        ):
            degrees[metric] = Degrees(name, per, Distribution.of(values))
    return degrees


def node_shares(
    clicks: Mapping[str, ClickCounts], edges: Mapping[str, EdgeCounts]
) -> dict[str, Share]:
    """Count nodes without clicks or edges, and test clicks on rare ads, by metric name."""
    queries = clicks["train"].per_query
    train, test = clicks["train"].per_ad, clicks["test"].per_ad
    without, with_one = "ads without a train click", "ads with exactly one train click"
    shares = {
        "queries_without_click": _share("train queries without a click", queries == 0),
        "ads_without_click": _share(without, train == 0),
        "ads_with_one_click": _share(with_one, train == 1),
        "test_clicks_on_ads_without_click": _share(f"test clicks on {without}", train == 0, test),
        "test_clicks_on_ads_with_one_click": _share(f"test clicks on {with_one}", train == 1, test),
    }
    if edges:
        no_query = ~np.any([of_set.per_query for of_set in edges.values()], axis=0)
        no_ad = ~np.any([of_set.per_ad for of_set in edges.values()], axis=0)
        shares["queries_without_edge"] = _share("train queries without any edge", no_query)
        shares["ads_without_edge"] = _share("ads without any edge", no_ad)
    for name, of_set in edges.items():
        for key, what, degrees in (
            ("queries", f"train queries without an edge to {name}", of_set.per_query),
            ("ads", f"ads without an edge to {name}", of_set.per_ad),
            ("anchors", f"{name} anchors without an edge", of_set.per_anchor),
        ):
            shares[f"{name}_{key}_without_edge"] = _share(what, degrees == 0)
    return shares


def popularity_group(member: Booleans, clicks: Mapping[str, ClickCounts]) -> PopularityGroup:
    """Describe the group of ads that ``member`` (ads,) flags."""
    train, test = clicks["train"].per_ad, clicks["test"].per_ad
    counted = train[member]
    return PopularityGroup(
        (int(counted.min()), int(counted.max())) if len(counted) else None,
        {
            "ads": _share("ads", member),
            "train_clicks": _share("train clicks", member, train),
            "test_clicks": _share("test clicks", member, test),
        },
    )


def largest_hubs(dataset: Dataset, anchor_set: str, edges: EdgeCounts, count: int) -> list[Hub]:
    """Return the ``count`` anchors of a set with most edges, most first."""
    degrees = edges.per_anchor
    largest = np.argsort(-degrees, kind="stable")[:count].tolist()
    texts = _texts_by_id(dataset, f"anchors/{anchor_set}", largest)
    return [
        Hub(
            texts[anchor],
            int(edges.queries_per_anchor[anchor]),
            int(edges.ads_per_anchor[anchor]),
            float(degrees[anchor] / degrees.sum()),
        )
        for anchor in largest
    ]


def sample_ids(num_rows: int, size: int, seed: int) -> list[int]:
    """Draw ``size`` of the ids of a table, or all if there are fewer; ascending."""
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(num_rows, min(size, num_rows), replace=False)).tolist()


def sample_queries(dataset: Dataset, size: int, seed: int) -> list[SampleQuery]:
    """Read ``size`` train queries, drawn by ``seed``, with their ads and anchors, as text."""
    ids = sample_ids(dataset.num_rows(TRAIN), size, seed)
    rows = dataset.rows_with_ids(TRAIN, ids).to_pylist()
    ads = _texts_by_id(dataset, "ads", {ad for row in rows for ad in row["ad_ids"]})
    anchors = {
        name: _anchors_of(dataset, name, ids)
        for name in dataset.anchor_sets
        if dataset.has(f"edges/{name}/query")
    }
    samples = []
    for row in rows:
        of_row = {name: of_query[row["query_id"]] for name, of_query in anchors.items()}
        samples.append(SampleQuery(row["text"], [ads[ad] for ad in row["ad_ids"]], of_row))
    return samples


def _anchors_of(dataset: Dataset, anchor_set: str, query_ids: list[int]) -> dict[int, list[str]]:
    edges = dataset.rows_with_ids(f"edges/{anchor_set}/query", query_ids).to_pylist()
    ids = {edge["anchor_id"] for edge in edges}
    texts = _texts_by_id(dataset, f"anchors/{anchor_set}", ids)
    of_query: dict[int, list[str]] = {query: [] for query in query_ids}
    for edge in edges:
        of_query[edge["query_id"]].append(texts[edge["anchor_id"]])
    return of_query


def _texts_by_id(dataset: Dataset, table: str, ids: Iterable[int]) -> dict[int, str]:
    rows = dataset.rows_with_ids(table, ids)
    return dict(zip(rows[0].to_pylist(), rows["text"].to_pylist(), strict=True))


def _share(what: str, member: Booleans, counts: Int64s | None = None) -> Share:
    """Count the members among all nodes or, given the nodes' ``counts``, sum their counts."""
    if counts is None:
        return Share(what, int(member.sum()), len(member))
    return Share(what, int(counts[member].sum()), int(counts.sum()))
