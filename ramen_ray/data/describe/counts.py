"""Count the clicks and edges of every query, ad and anchor, and sum them up as statistics.

The dataset must be free of errors (:func:`ramen_ray.data.checks.validation.check`).
"""

from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.engine import Connection, name_literal, run, text_literal
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import LOW
from ramen_ray.data.store.schemas import JUDGED, NODE_TABLES, SPLITS, TRAIN

CLICKS = ""
"""The train clicks, as a graph beside the anchor sets."""


class Degrees(NamedTuple):
    """How many train clicks, or edges of an anchor set, the nodes of one kind have."""

    nodes: int
    edges: int
    without: int  # nodes that have none
    with_one: int
    quantiles: list[int]  # median, p90, p99 and max


def count_degrees(connection: Connection, dataset: Dataset) -> dict[tuple[str, str], Degrees]:
    """Create ``degrees`` (graph, side, node, degree); sums them up by graph and side.

    A graph is CLICKS, with the sides query and ad, or an anchor set, which also has anchors.
    """
    clicks = f"SELECT query_id, unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)}"
    counts = {
        (CLICKS, side): _degrees(CLICKS, side, nodes, clicks) for side, nodes in NODE_TABLES.items()
    }
    for name in dataset.anchor_sets:
        of_anchors = []
        for side, nodes in NODE_TABLES.items():
            edges = f"SELECT NULL::BIGINT AS {side}_id, NULL::BIGINT AS anchor_id WHERE false"
            if dataset.has(f"edges/{name}/{side}"):
                edges = f"FROM {name_literal(f'edges/{name}/{side}')}"
            counts[name, side] = _degrees(name, side, nodes, edges)
            of_anchors.append(f"SELECT anchor_id FROM ({edges})")
        every = " UNION ALL ".join(of_anchors)
        counts[name, "anchor"] = _degrees(name, "anchor", f"anchors/{name}", every)
    create = f"CREATE TABLE degrees AS {' UNION ALL '.join(counts.values())}"
    run(connection, "counting clicks and edges", create)
    summed = """SELECT graph, side, count(*), sum(degree)::BIGINT,
            count(*) FILTER (WHERE degree = 0), count(*) FILTER (WHERE degree = 1),
            quantile_disc(degree, [0.5, 0.9, 0.99, 1.0])
        FROM degrees GROUP BY graph, side"""
    by_side = {(graph, side): row for graph, side, *row in connection.sql(summed).fetchall()}
    return {key: Degrees(*by_side[key]) for key in counts}


def _degrees(graph: str, side: str, nodes: str, edges: str) -> str:
    return f"""SELECT {text_literal(graph)} AS graph, '{side}' AS side, node, count(edge) AS degree
        FROM (SELECT {side}_id AS node FROM {name_literal(nodes)})
        LEFT JOIN (SELECT {side}_id AS node, true AS edge FROM ({edges})) USING (node)
        GROUP BY node"""


def count_clicks(dataset: Dataset, split: str) -> tuple[Int64s, Int64s]:
    """Count the clicks of each query of a split, in row order, and of each ad."""
    per_query = [np.empty(0, dtype=np.int64)]
    per_ad = np.zeros(dataset.num_rows("ads"), dtype=np.int64)
    for batch in dataset.batches(f"queries/{split}", ["ad_ids"]):
        per_query.append(pc.list_value_length(batch["ad_ids"]).to_numpy().astype(np.int64))
        np.add.at(per_ad, batch["ad_ids"].flatten().to_numpy(), 1)
    return np.concatenate(per_query), per_ad


def dataset_statistics(dataset: Dataset) -> dict[str, float]:
    """Count queries, ads, clicks and edges, with the averages of RAMEN's Table 9.

    These are over all train queries (documents there) and all ads (labels), with clicks or without.
    """
    statistics: dict[str, float] = {}
    for split in reversed(SPLITS):  # the last is train
        per_query, per_ad = count_clicks(dataset, split)
        statistics[f"num_{split}_queries"] = len(per_query)
        statistics[f"num_{split}_clicks"] = per_ad.sum()
    statistics |= {
        "num_ads": len(per_ad),
        "clicks_per_query": per_query.mean(),
        "queries_per_ad": per_ad.mean(),
        "share_ads_without_click": (per_ad == 0).mean(),
        "share_ads_with_one_click": (per_ad == 1).mean(),
    }
    for table in filter(dataset.has, JUDGED):
        split = table.removeprefix("judged/")
        grades = dataset.read(table)["grade"]
        statistics[f"num_{split}_judgements"] = len(grades)
        statistics[f"num_{split}_low_judgements"] = pc.sum(pc.less(grades, LOW)).as_py()
    for name in dataset.anchor_sets:
        statistics[f"{name}_num_anchors"] = dataset.num_rows(f"anchors/{name}")
        for side, nodes in NODE_TABLES.items():
            edges = f"edges/{name}/{side}"
            num_edges = dataset.num_rows(edges) if dataset.has(edges) else 0
            statistics[f"{name}_anchors_per_{side}"] = num_edges / dataset.num_rows(nodes)
    return {key: float(value) for key, value in statistics.items()}
