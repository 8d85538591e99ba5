"""What an anchor set could bring, as far as one can tell before training.

A graph helps where it ties queries to the ads that are clicked for them. Held-out queries have no
edges, so this is measured on train clicks: how often does a query share an anchor with its ad, and
how often with an ad that was clicked for another query? A set with edges on one side only is
measured by its pairs: how often do ads that it joins share a query that led to both?

The dataset must be free of errors (:func:`ramen_ray.data.checks.check`).
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import gettempdir

import numpy as np
from duckdb import DuckDBPyConnection

from ramen_ray.data.describe.content import GraphSignal
from ramen_ray.data.describe.counts import ClickCounts, EdgeCounts
from ramen_ray.data.describe.pairs import (
    clicks_of,
    count_shared,
    edges_of,
    joined_pairs,
    sample_clicks,
    words_in_common,
)
from ramen_ray.data.engine import count, engine, name_literal, run
from ramen_ray.data.leaks import find_answers, find_leaks, texts_of
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES


def graph_signals(
    dataset: Dataset, clicks: Mapping[str, ClickCounts], edges: Mapping[str, EdgeCounts]
) -> dict[str, GraphSignal]:
    """Measure every anchor set, from the counted ``clicks`` by split and ``edges`` by set."""
    if not dataset.anchor_sets:
        return {}
    queries, ads = sample_clicks(dataset)
    unclicked, test_clicks = clicks["train"].per_ad == 0, clicks["test"].per_ad
    signals = {}
    with engine(Path(gettempdir()), dataset=dataset) as connection:
        leaks = _count_leaks(connection, dataset)
        wordless = ~words_in_common(connection, ("query", "ad"), (queries, ads))
        for name, counts in edges.items():
            per_query, per_ad = counts.per_query, counts.per_ad
            ends = {"query": per_query, "ad": per_ad}
            sides = tuple(side for side, counted in ends.items() if counted.any())
            if len(sides) == 2:
                both = (per_query[queries] > 0) & (per_ad[ads] > 0)
                pairs, chosen = (queries[both], ads[both]), wordless[both]
                things = edges_of(name, "query"), edges_of(name, "ad")
            else:
                (side,) = sides
                nodes = np.unique(queries if side == "query" else ads)
                pairs = joined_pairs(connection, name, side, nodes)
                chosen = ~words_in_common(connection, (side, side), pairs)
                things = clicks_of(side), clicks_of(side)
            signals[name] = GraphSignal(
                sides,
                float(per_query.mean()),
                float(per_ad.mean()),
                int(test_clicks.sum()),
                int(test_clicks[unclicked & (per_ad > 0)].sum()),
                *count_shared(connection, things, pairs, chosen),
                int(per_query.sum() + per_ad.sum()),
                leaks[name],
            )
    return signals


def _count_leaks(connection: DuckDBPyConnection, dataset: Dataset) -> dict[str, int]:
    """Count the edges of each anchor set that join a held-out query to its answer."""
    in_answers = "SELECT query FROM answers UNION SELECT ad FROM answers"
    counts = dict.fromkeys(dataset.anchor_sets, 0)
    find_answers(connection, dataset.tables)
    for side, table in NODE_TABLES.items():
        ends = f"FROM ({texts_of(table)}) WHERE folded IN ({in_answers})"
        run(connection, f"reading {table}", f"CREATE OR REPLACE TABLE ends AS {ends}")
        for name in dataset.anchor_sets:
            edges = f"edges/{name}/{side}"
            if dataset.has(edges):
                find_leaks(connection, "FROM ends", texts_of(f"anchors/{name}"))
                counts[name] += count(
                    connection,
                    f"""
                    SELECT count(*) FROM {name_literal(edges)}
                    JOIN leaks ON {side}_id = node AND anchor_id = anchor
                    """,
                )
    return counts
