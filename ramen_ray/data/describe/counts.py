"""Count the clicks and edges of every query, ad and anchor.

The dataset must be free of errors (:func:`ramen_ray.data.checks.validation.check`).
"""

from typing import NamedTuple

from ramen_ray.data.engine import Connection, name_literal, run, text_literal
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN

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
