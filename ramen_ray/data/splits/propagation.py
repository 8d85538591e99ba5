"""Clicks propagated over shared anchors: "AugGT" of the RAMEN paper (section 4, Table 8).

The paper trains on a train query and an ad that share an anchor as if it were a click, and gives no
more detail. Here a query gets the ads with which it shares the most anchors. Hubs, which connect
everything, are left out, and no query gets the ad that has its own text.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, hstack, vstack

from ramen_ray.data.arrays import Int64s, UInt64s, list_entries, to_lists
from ramen_ray.data.checks import check
from ramen_ray.data.checks.structure import read_tables
from ramen_ray.data.prepared.hashing import HashIndex, keyed_hash
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError, new_dataset
from ramen_ray.data.store.matrices import click_matrix, edge_matrix, text_numbers
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN
from ramen_ray.naming import joined_name

PRODUCTS_AT_ONCE = 1 << 22

logger = logging.getLogger(__name__)


class NothingPropagatedError(DatasetError):
    """No query shares an anchor with an ad that it does not already have."""


@dataclass(frozen=True)
class PropagationSettings:
    """Which ads are added to a query.

    Attributes:
        via: Which ads an anchor leads to: ad-edges, those with an edge to it (as in the paper); or
            clicks, those clicked for the train queries with an edge to it.
        anchor_sets: Anchor sets whose anchors count; default all, and only the strict one where
            there is a second set as published.
        max_anchor_degree: Anchors with more edges, to train queries and ads together, are left out.
        top_k: Largest number of ads that a query gets: those with which it shares most anchors,
            each weighted by the product of its two edges' weights (clicks: summed over queries).
        seed: Seed of the draw among ads with equal scores.
    """

    via: Literal["ad-edges", "clicks"] = "ad-edges"
    anchor_sets: tuple[str, ...] = ()
    max_anchor_degree: int = 500
    top_k: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that would add no clicks."""
        if self.top_k < 1 or self.max_anchor_degree < 2:
            raise DatasetError("top_k must be 1 or more, and max_anchor_degree 2 or more")


def propagate_clicks(parent: Dataset, output: Path, settings: PropagationSettings) -> Dataset:
    """Write a dataset directory whose train queries have more ads, propagated over shared anchors.

    No held-out click influences the result; all other tables stay as they are. If clicks have
    weights, an added click gets the query's lowest weight, or 1 for a query that had none. Raises a
    DatasetError if the dataset is not usable, changes meanwhile, or ``output`` exists, and a
    NothingPropagatedError if nothing would be added.
    """
    made = {"parent": parent.name, "parent_fingerprint": parent.fingerprint, **asdict(settings)}
    check(parent)
    graph = _Graph.from_dataset(parent, settings)
    named = {"name": joined_name(parent.name, "propagated"), "propagated_clicks": made}
    counts = Counter[str]()
    whole = new_dataset(output, **{**parent.metadata, **named})
    with whole as writer, parent.unchanged(WHILE_READ):
        writer.write(TRAIN, _with_added_ads(parent, graph, settings, counts))
        if not counts["added"]:
            raise NothingPropagatedError(
                f"no train query of {parent.path} shares an anchor of at most "
                f"{settings.max_anchor_degree} edges with an ad that it does not already have"
            )
        for table in read_tables(parent):
            if table != TRAIN:
                writer.write(table, parent.batches(table))
    logger.info(
        "added %s clicks to %s of %s train queries, which had %s",
        *(f"{counts[what]:,}" for what in ("added", "queries with more", "queries", "had")),
    )
    return Dataset(output)


@dataclass(frozen=True)
class _Graph:
    """The graph from train queries to ads, over the anchors of all sets."""

    query_anchors: csr_array  # (train queries, anchors) float32 weights
    anchor_ads: csr_array  # (anchors, ads) float32 weights
    text_of_query: UInt64s  # (train queries,) the numbers of their texts
    ads_by_text: HashIndex  # by the numbers of their texts

    @classmethod
    def from_dataset(cls, parent: Dataset, settings: PropagationSettings) -> "_Graph":
        """Read the chosen anchor sets, without hubs."""
        chosen = settings.anchor_sets or parent.strict_anchor_sets
        if unknown := sorted(set(chosen) - set(parent.anchor_sets)):
            raise DatasetError(
                f"{parent.path} has no anchor set {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(map(repr, parent.anchor_sets)) or 'none'}"
            )
        if not chosen:
            raise DatasetError(f"{parent.path} has no anchor sets to propagate clicks over")
        clicks = click_matrix(parent, "train").sign() if settings.via == "clicks" else None
        queries, ads = [], []
        for name in sorted(set(chosen)):
            sides = [edge_matrix(parent, name, side) for side in NODE_TABLES]
            degrees = sum(np.bincount(e.indices, minlength=e.shape[1]) for e in sides)
            kept = np.flatnonzero(degrees <= settings.max_anchor_degree)
            of_query, of_ad = (edges[:, kept] for edges in sides)
            queries.append(of_query)
            ads.append(of_ad.T if clicks is None else of_query.T @ clicks)
        numbers = text_numbers(parent, [TRAIN, "ads"])
        ads_by_text = HashIndex.from_hashes(numbers["ads"])
        graph = hstack(queries, format="csr"), vstack(ads, format="csr")
        return cls(*graph, numbers[TRAIN], ads_by_text)

    def scores(self, queries: Int64s, known: csr_array) -> Iterator[tuple[slice, csr_array]]:
        """Score the ads that share anchors with ``queries`` (n,), a bounded number at a time.

        ``known`` (n, ads) is minus infinity for pairs that must not be added, and so is their
        score. Yields a range of the queries, and the scores (queries of the range, ads).
        """
        anchors = self.query_anchors[queries]
        num_products = np.diff(self.anchor_ads.indptr)[anchors.indices]
        products = np.concatenate([[0], np.cumsum(num_products)])[anchors.indptr]
        start = 0
        while start < len(queries):
            stop = int(np.searchsorted(products, products[start] + PRODUCTS_AT_ONCE, side="right"))
            chosen = slice(start, max(stop - 1, start + 1))
            yield chosen, anchors[chosen] @ self.anchor_ads + known[chosen]
            start = chosen.stop


def _with_added_ads(
    parent: Dataset, graph: _Graph, settings: PropagationSettings, counts: Counter[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the train queries with their ads and the added ones, highest scores first."""
    num_ads = parent.num_rows("ads")
    for rows in parent.batches(TRAIN):
        queries = rows["query_id"].to_numpy()
        clicked = np.stack(list_entries(rows["ad_ids"]))
        same_text = graph.ads_by_text.all(graph.text_of_query[queries])
        pairs = np.concatenate([clicked, same_text], axis=1)
        never = np.full(pairs.shape[1], -np.inf, np.float32)
        known = csr_array((never, pairs), shape=(len(rows), num_ads))
        found = [
            _best(scores, queries[chosen], settings) + np.array([[chosen.start], [0]])
            for chosen, scores in graph.scores(queries, known)
        ]
        added_rows, added_ads = np.concatenate(found, axis=1)
        yield _extended(rows, added_rows, added_ads)
        counts.update(added=len(added_ads), had=clicked.shape[1], queries=len(rows))
        counts["queries with more"] += len(np.unique(added_rows))


def _best(scores: csr_array, queries: Int64s, settings: PropagationSettings) -> Int64s:
    """Return the (row, ad) pairs (2, pairs) of each row's highest scores, best first."""
    shared = scores.tocoo()
    positive = shared.data > 0
    rows, ads = shared.row[positive].astype(np.int64), shared.col[positive].astype(np.int64)
    draws = keyed_hash((settings.seed,), queries[rows] * scores.shape[1] + ads)
    order = np.lexsort((draws >> np.uint64(48), -shared.data[positive], rows))
    first = np.searchsorted(rows, np.arange(scores.shape[0]))
    best = order[np.arange(len(rows)) - first[rows] < settings.top_k]
    return np.stack([rows[best], ads[best]])


def _extended(rows: pa.RecordBatch, added_rows: Int64s, added_ads: Int64s) -> pa.RecordBatch:
    """Append ads (added,) to the lists of ``rows``; ``added_rows`` (added,) are ascending."""
    row_of_click, ads = list_entries(rows["ad_ids"])
    row_of_entry = np.concatenate([row_of_click, added_rows])
    order = np.argsort(row_of_entry, kind="stable")
    extended = {"ad_ids": np.concatenate([ads, added_ads])}
    if "weights" in rows.column_names:
        weights = rows["weights"].flatten().to_numpy()
        lightest = np.full(len(rows), np.inf, dtype=np.float32)
        np.minimum.at(lightest, row_of_click, weights)
        added = np.where(np.isinf(lightest), np.float32(1), lightest)[added_rows]
        extended["weights"] = np.concatenate([weights, added])
    for column, entries in extended.items():
        lists = to_lists(entries[order], np.bincount(row_of_entry, minlength=len(rows)))
        rows = rows.set_column(rows.column_names.index(column), column, lists)
    return rows
