"""What an anchor set could bring, as far as one can tell before training.

A graph helps where it ties queries to the ads that are clicked for them. Held-out queries have no
edges, so this is measured on train clicks: how often does a query share an anchor with its ad, and
how often with an ad that was clicked for another query?

The dataset must be free of errors (:func:`ramen_ray.data.checks.check`). Tables are read as
streams; memory holds a sample of the clicks, and the edges of its queries and ads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pyarrow.compute as pc
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.describe.degrees import ClickCounts, EdgeCounts
from ramen_ray.data.engine import count, engine, files_of, run
from ramen_ray.data.leaks import NODE_TABLES, find_answers, find_leaks, texts_of
from ramen_ray.data.prepared.hashing import hash_strings, keyed_hash
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.lists import click_pairs, list_entries
from ramen_ray.data.store.texts import fold

NUM_SHUFFLES = 10
MAX_CLICKS = 200_000
"""If there are more train clicks, this many are used, chosen by their hash."""
CLICKS_AT_ONCE = 1 << 16
_SAMPLE = NUM_SHUFFLES  # a hash key that no shuffle has


@dataclass(frozen=True)
class SharedAnchors:
    """How many train clicks join a query and an ad that share an anchor, and how many by chance.

    Attributes:
        clicks: clicks whose query and ad both have edges.
        shared: those of them whose query and ad share an anchor.
        by_chance: as many as ``shared`` if the ads are shuffled among the clicks, on average.
    """

    clicks: int
    shared: int
    by_chance: float

    @property
    def share(self) -> float:
        """``shared`` over ``clicks``."""
        return self.shared / self.clicks if self.clicks else 0.0

    @property
    def share_by_chance(self) -> float:
        """``by_chance`` over ``clicks``."""
        return self.by_chance / self.clicks if self.clicks else 0.0

    @property
    def lift(self) -> float:
        """``shared`` over ``by_chance``, which is at least what the shuffles can resolve."""
        return self.shared / max(self.by_chance, 1 / NUM_SHUFFLES)


@dataclass(frozen=True)
class GraphSignal:
    """What an anchor set could bring.

    Attributes:
        edges_per_query: on average over the train queries.
        edges_per_ad: on average over the ads.
        test_clicks: clicks of the test split.
        reached_clicks: those of them on ads without a train click but with edges.
        shared: over the train clicks.
        shared_beyond_words: over those whose query and ad have no word in common.
        edges: edges of the set, on both sides.
        leaking_edges: those of them that join a held-out query to its answer.
    """

    edges_per_query: float
    edges_per_ad: float
    test_clicks: int
    reached_clicks: int
    shared: SharedAnchors
    shared_beyond_words: SharedAnchors
    edges: int
    leaking_edges: int

    @property
    def metrics(self) -> dict[str, float]:
        """What is worth comparing between graphs, by name."""
        return {
            "share_test_clicks_reached": self.reached_clicks / max(self.test_clicks, 1),
            "share_clicks_with_shared_anchor": self.shared.share,
            "share_by_chance": self.shared.share_by_chance,
            "lift": self.shared.lift,
            "lift_beyond_words": self.shared_beyond_words.lift,
            "share_leaking_edges": self.leaking_edges / max(self.edges, 1),
        }


def graph_signals(
    dataset: Dataset, clicks: Mapping[str, ClickCounts], edges: Mapping[str, EdgeCounts]
) -> dict[str, GraphSignal]:
    """Measure every anchor set of a dataset.

    Args:
        dataset: the dataset directory.
        clicks: its clicks by split, counted.
        edges: its edges by anchor set, counted.
    """
    if not dataset.anchor_sets:
        return {}
    queries, ads = sample_clicks(dataset)
    wordless = ~words_in_common(dataset, queries, ads)
    query_ids, query_rows = np.unique(queries, return_inverse=True)
    ad_ids, ad_rows = np.unique(ads, return_inverse=True)
    unclicked, test_clicks = clicks["train"].per_ad == 0, clicks["test"].per_ad
    leaks = count_leaks(dataset)
    signals = {}
    for name in dataset.anchor_sets:
        of_query = read_edges(dataset, name, "query", query_ids)
        of_ad = read_edges(dataset, name, "ad", ad_ids)
        per_query, per_ad = edges[name].per_query, edges[name].per_ad
        signals[name] = GraphSignal(
            float(per_query.mean()),
            float(per_ad.mean()),
            int(test_clicks.sum()),
            int(test_clicks[unclicked & (per_ad > 0)].sum()),
            shared_anchors(of_query, of_ad, query_rows, ad_rows),
            shared_anchors(of_query, of_ad, query_rows[wordless], ad_rows[wordless]),
            int(per_query.sum() + per_ad.sum()),
            leaks[name],
        )
    return signals


def sample_clicks(dataset: Dataset) -> tuple[Int64s, Int64s]:
    """Return the query and the ad of each train click (clicks,), of at most ``MAX_CLICKS``."""
    draws = np.empty(0, dtype=np.uint64)
    clicks = np.empty((2, 0), dtype=np.int64)
    first = 0
    for rows in dataset.batches(NODE_TABLES["query"], ["query_id", "ad_ids"]):
        found = np.stack(click_pairs(rows))
        numbers = np.arange(first, first + found.shape[1])
        draws = np.concatenate([draws, keyed_hash((_SAMPLE,), numbers)])
        clicks = np.concatenate([clicks, found], axis=1)
        first += len(numbers)
        if len(draws) > MAX_CLICKS:
            lowest = np.sort(np.argpartition(draws, MAX_CLICKS)[:MAX_CLICKS])
            draws, clicks = draws[lowest], clicks[:, lowest]
    return clicks[0], clicks[1]


def shared_anchors(
    query_edges: csr_array, ad_edges: csr_array, queries: Int64s, ads: Int64s
) -> SharedAnchors:
    """Count the clicks that join a query and an ad with an anchor in common.

    Args:
        query_edges: (queries, anchors).
        ad_edges: (ads, anchors).
        queries: (clicks,) rows of ``query_edges``.
        ads: (clicks,) rows of ``ad_edges``, the ads that were clicked.
    """
    linked = (np.diff(query_edges.indptr)[queries] > 0) & (np.diff(ad_edges.indptr)[ads] > 0)
    queries, ads = queries[linked], ads[linked]
    orders = (np.argsort(keyed_hash((n,), np.arange(len(ads)))) for n in range(NUM_SHUFFLES))
    shuffled = [_count_shared(query_edges, ad_edges, queries, ads[order]) for order in orders]
    shared = _count_shared(query_edges, ad_edges, queries, ads)
    return SharedAnchors(len(queries), shared, float(np.mean(shuffled)))


def words_in_common(dataset: Dataset, queries: Int64s, ads: Int64s) -> Booleans:
    """Flag the pairs (n,) of a train query and an ad whose texts share a word, in any case."""
    words, rows = [], []
    for table, nodes in zip(NODE_TABLES.values(), (queries, ads), strict=True):
        ids, of_pair = np.unique(nodes, return_inverse=True)
        texts = fold(dataset.rows_with_ids(table, ids)["text"].combine_chunks())
        row, found = list_entries(pc.split_pattern_regex(texts, r"[^\p{L}\p{N}]+"))
        is_word = np.asarray(pc.not_equal(found, ""))
        words.append((row[is_word], hash_strings(found)[is_word], len(ids)))
        rows.append(of_pair)
    vocabulary = np.unique(np.concatenate([hashes for _, hashes, _ in words]))
    matrices = [
        _ones(row, np.searchsorted(vocabulary, hashes), (count, len(vocabulary)))
        for row, hashes, count in words
    ]
    return _flag_shared(*matrices, *rows)


def read_edges(dataset: Dataset, anchor_set: str, side: str, nodes: Int64s) -> csr_array:
    """Read the edges of some ``nodes`` (n,), train queries or ads, as (n, anchors), 1 each."""
    table = f"edges/{anchor_set}/{side}"
    shape = len(nodes), dataset.num_rows(f"anchors/{anchor_set}")
    if not dataset.has(table):
        return csr_array(shape, dtype=np.int32)
    row_of = np.full(dataset.num_rows(NODE_TABLES[side]), -1)
    row_of[nodes] = np.arange(len(nodes))
    found = []
    for batch in dataset.batches(table, [f"{side}_id", "anchor_id"]):
        rows, anchors = row_of[batch.column(0).to_numpy()], batch.column(1).to_numpy()
        found.append((rows[rows >= 0], anchors[rows >= 0]))
    rows, anchors = (np.concatenate(ends) for ends in zip(*found, strict=True))
    return _ones(rows, anchors, shape)


def count_leaks(dataset: Dataset) -> dict[str, int]:
    """Count the edges of each anchor set that join a held-out query to its answer."""
    in_answers = "SELECT query FROM answers UNION SELECT ad FROM answers"
    counts = dict.fromkeys(dataset.anchor_sets, 0)
    with engine(Path(gettempdir())) as connection:
        find_answers(connection, dataset)
        for side, table in NODE_TABLES.items():
            ends = f"SELECT * FROM ({texts_of(dataset, table)}) WHERE fold(text) IN ({in_answers})"
            run(connection, f"reading {table}", f"CREATE TABLE ends AS {ends}")
            for name in dataset.anchor_sets:
                edges = f"edges/{name}/{side}"
                if dataset.has(edges):
                    anchors = texts_of(dataset, f"anchors/{name}")
                    find_leaks(connection, "leaks", "SELECT * FROM ends", anchors)
                    counts[name] += count(
                        connection,
                        f"""
                        SELECT count(*) FROM {files_of(dataset, edges)} AS edge
                        JOIN leaks ON edge.{side}_id = node AND edge.anchor_id = anchor
                        """,
                    )
                    connection.execute("DROP TABLE leaks")
            connection.execute("DROP TABLE ends")
    return counts


def _count_shared(query_edges: csr_array, ad_edges: csr_array, queries: Int64s, ads: Int64s) -> int:
    return int(_flag_shared(query_edges, ad_edges, queries, ads).sum())


def _flag_shared(one: csr_array, other: csr_array, rows: Int64s, other_rows: Int64s) -> Booleans:
    """Flag the pairs (n,) of a row of each matrix that have an entry in the same column."""
    flags = np.zeros(len(rows), dtype=np.bool_)
    for start in range(0, len(rows), CLICKS_AT_ONCE):
        some = slice(start, start + CLICKS_AT_ONCE)
        both = one[rows[some]].multiply(other[other_rows[some]]).tocsr()
        flags[some] = np.diff(both.indptr) > 0
    return flags


def _ones(rows: Int64s, columns: Int64s, shape: tuple[int, int]) -> csr_array:
    return csr_array((np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=shape)
