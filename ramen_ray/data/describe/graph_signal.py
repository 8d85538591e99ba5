"""What an anchor set could bring, as far as one can tell before training.

A graph helps where it ties queries to the ads that are clicked for them. Held-out queries have no
edges, so this is measured on train clicks: how often does a query share an anchor with its ad, and
how often with an ad that was clicked for another query? A set with edges on one side only is
measured by its pairs: how often do ads that it joins share a query that led to both?

The dataset must be free of errors (:func:`ramen_ray.data.checks.check`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.describe.counts import ClickCounts, EdgeCounts
from ramen_ray.data.describe.pairs import (
    Shared,
    count_shared,
    joined_pairs,
    read_clicks,
    read_edges,
    sample_clicks,
    words_in_common,
)
from ramen_ray.data.engine import count, engine, name_literal, run
from ramen_ray.data.leaks import find_answers, find_leaks, texts_of
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES

OF_CLICKS, FEWEST_LIFT = 0.995, 2.0


@dataclass(frozen=True)
class GraphSignal:
    """What an anchor set could bring."""

    sides: tuple[str, ...]  # those with edges: query, ad or both
    edges_per_query: float  # on average over the train queries
    edges_per_ad: float  # on average over the ads
    test_clicks: int
    reached_clicks: int  # those of them on ads without a train click but with edges
    shared: Shared  # over the train clicks, or over the pairs that a set of one side joins
    shared_beyond_words: Shared  # over those of them that have no word in common
    edges: int
    leaking_edges: int  # those of them that join a held-out query to its answer

    @property
    def is_void(self) -> bool:
        """Whether it was made from the clicks themselves, so that its lift says nothing."""
        return self.shared.share >= OF_CLICKS and self.shared.lift >= FEWEST_LIFT

    @property
    def metrics(self) -> dict[str, float]:
        """What is worth comparing between graphs, by name; only what there is."""
        found = {"share_leaking_edges": self.leaking_edges / max(self.edges, 1)}
        if "ad" in self.sides:
            found["share_test_clicks_reached"] = self.reached_clicks / max(self.test_clicks, 1)
        if self.shared.pairs and not self.is_void:
            is_whole = len(self.sides) == 2
            what = "clicks_with_shared_anchor" if is_whole else "joined_pairs_with_shared_click"
            found |= {
                f"share_{what}": self.shared.share,
                "share_by_chance": self.shared.share_by_chance,
                "lift": self.shared.lift,
            }
            if self.shared_beyond_words.pairs:
                found["lift_beyond_words"] = self.shared_beyond_words.lift
        return found


def graph_signals(
    dataset: Dataset, clicks: Mapping[str, ClickCounts], edges: Mapping[str, EdgeCounts]
) -> dict[str, GraphSignal]:
    """Measure every anchor set, from the counted ``clicks`` by split and ``edges`` by set."""
    if not dataset.anchor_sets:
        return {}
    clicked = SampledClicks(dataset, *sample_clicks(dataset))
    unclicked, test_clicks = clicks["train"].per_ad == 0, clicks["test"].per_ad
    leaks = _count_leaks(dataset)
    signals = {}
    for name, counts in edges.items():
        per_query, per_ad = counts.per_query, counts.per_ad
        ends = {"query": per_query, "ad": per_ad}
        sides = tuple(side for side, counted in ends.items() if counted.any())
        shared, beyond_words = clicked.ties(name) if len(sides) == 2 else clicked.joins(name, sides)
        signals[name] = GraphSignal(
            sides,
            float(per_query.mean()),
            float(per_ad.mean()),
            int(test_clicks.sum()),
            int(test_clicks[unclicked & (per_ad > 0)].sum()),
            shared,
            beyond_words,
            int(per_query.sum() + per_ad.sum()),
            leaks[name],
        )
    return signals


@dataclass(frozen=True)
class SampledClicks:
    """A sample of the train clicks, on which graphs are measured: ids (clicks,) of both ends."""

    dataset: Dataset
    queries: Int64s
    ads: Int64s

    @cached_property
    def wordless(self) -> Booleans:
        """Flags the clicks (clicks,) whose texts have no word in common."""
        return ~words_in_common(self.dataset, tuple(NODE_TABLES), (self.queries, self.ads))

    def ties(self, name: str) -> tuple[Shared, Shared]:
        """Count the clicks whose ends share an anchor, of all and of those without common words."""
        edges, rows, both = [], [], np.ones(len(self.queries), dtype=np.bool_)
        for side, ends in (("query", self.queries), ("ad", self.ads)):
            nodes, of_click = np.unique(ends, return_inverse=True)
            edges.append(read_edges(self.dataset, name, side, nodes))
            rows.append(of_click)
            both &= np.diff(edges[-1].indptr)[of_click] > 0
        return (
            count_shared(*edges, *(row[both] for row in rows)),
            count_shared(*edges, *(row[both & self.wordless] for row in rows)),
        )

    def joins(self, name: str, sides: tuple[str, ...]) -> tuple[Shared, Shared]:
        """Count the pairs that a set of one side joins, and that share a click, as :meth:`ties`."""
        if not sides:
            return Shared(0, 0, 0.0), Shared(0, 0, 0.0)
        (side,) = sides
        nodes = np.unique(self.queries if side == "query" else self.ads)
        pairs = joined_pairs(self.dataset, name, side, nodes)
        clicks = read_clicks(self.dataset, side, nodes)
        ids = nodes[pairs[0]], nodes[pairs[1]]
        wordless = ~words_in_common(self.dataset, (side, side), ids)
        return (
            count_shared(clicks, clicks, *pairs),
            count_shared(clicks, clicks, *(rows[wordless] for rows in pairs)),
        )


def _count_leaks(dataset: Dataset) -> dict[str, int]:
    """Count the edges of each anchor set that join a held-out query to its answer."""
    in_answers = "SELECT query FROM answers UNION SELECT ad FROM answers"
    counts = dict.fromkeys(dataset.anchor_sets, 0)
    with engine(Path(gettempdir()), dataset=dataset) as connection:
        find_answers(connection, dataset.tables)
        for side, table in NODE_TABLES.items():
            ends = f"FROM ({texts_of(table)}) WHERE folded IN ({in_answers})"
            run(connection, f"reading {table}", f"CREATE TABLE ends AS {ends}")
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
            connection.execute("DROP TABLE ends")
    return counts
