"""From the clicks and edges of every node to the few figures of a description."""

from collections.abc import Mapping

import numpy as np

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.describe.content import (
    Degrees,
    Distribution,
    Hub,
    PopularityGroup,
    Share,
    SplitSize,
)
from ramen_ray.data.describe.counts import ClickCounts, EdgeCounts
from ramen_ray.data.describe.samples import texts_of
from ramen_ray.data.store.dataset import Dataset


def split_size(clicks: ClickCounts) -> SplitSize:
    """Sum the clicks of a split."""
    return SplitSize(len(clicks.per_query), int(clicks.per_query.sum()), clicks.weight)


def node_degrees(train: ClickCounts, edges: Mapping[str, EdgeCounts]) -> dict[str, Degrees]:
    """Count how many nodes have how many train clicks, and edges of each anchor set."""
    counts: dict[str, tuple[str, str, Int64s]] = {
        "clicks_per_query": ("clicks", "query", train.per_query),
        "queries_per_ad": ("clicks", "ad", train.per_ad),
    }
    for name, of_set in edges.items():
        counts |= {
            f"{name}_anchors_per_query": (name, "query", of_set.per_query),
            f"{name}_anchors_per_ad": (name, "ad", of_set.per_ad),
            f"{name}_nodes_per_anchor": (name, "anchor", of_set.per_anchor),
        }
    return {
        metric: Degrees(of, per, Distribution.of(values))
        for metric, (of, per, values) in counts.items()
    }


def node_shares(
    clicks: Mapping[str, ClickCounts], edges: Mapping[str, EdgeCounts]
) -> dict[str, Share]:
    """Count nodes without clicks or edges, and test clicks on rare ads, by metric name."""
    queries = clicks["train"].per_query
    train, test = clicks["train"].per_ad, clicks["test"].per_ad
    zero, one = "ads without a train click", "ads with exactly one train click"
    shares = {
        "queries_without_click": _share("train queries without a click", queries == 0),
        "ads_without_click": _share(zero, train == 0),
        "ads_with_one_click": _share(one, train == 1),
        "test_clicks_on_ads_without_click": _share(f"test clicks on {zero}", train == 0, test),
        "test_clicks_on_ads_with_one_click": _share(f"test clicks on {one}", train == 1, test),
    }
    if not edges:
        return shares
    linked_queries = np.any([of_set.per_query for of_set in edges.values()], axis=0)
    linked_ads = np.any([of_set.per_ad for of_set in edges.values()], axis=0)
    shares |= {
        "queries_without_edge": _share("train queries without any edge", ~linked_queries),
        "ads_without_edge": _share("ads without any edge", ~linked_ads),
    }
    for name, of_set in edges.items():
        shares |= {
            f"{name}_queries_without_edge": _share(
                f"train queries without an edge to {name}", of_set.per_query == 0
            ),
            f"{name}_ads_without_edge": _share(
                f"ads without an edge to {name}", of_set.per_ad == 0
            ),
            f"{name}_anchors_without_edge": _share(
                f"{name} anchors without an edge", of_set.per_anchor == 0
            ),
        }
    return shares


def popularity_group(member: Booleans, clicks: Mapping[str, ClickCounts]) -> PopularityGroup:
    """Describe the group of ads that ``member`` (ads,) flags."""
    train, test = clicks["train"].per_ad, clicks["test"].per_ad
    found = train[member]
    return PopularityGroup(
        (int(found.min()), int(found.max())) if len(found) else None,
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
    texts = texts_of(dataset, f"anchors/{anchor_set}", largest)
    return [
        Hub(
            texts[anchor],
            int(edges.queries_per_anchor[anchor]),
            int(edges.ads_per_anchor[anchor]),
            float(degrees[anchor] / degrees.sum()),
        )
        for anchor in largest
    ]


def _share(what: str, member: Booleans, counts: Int64s | None = None) -> Share:
    """Count the members among all nodes or, given the nodes' ``counts``, sum their counts."""
    if counts is None:
        return Share(what, int(member.sum()), len(member))
    return Share(what, int(counts[member].sum()), int(counts.sum()))
