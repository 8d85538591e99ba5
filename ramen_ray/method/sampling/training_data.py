"""What a run trains on: texts, clicks, judgements, and the graphs of its regularisers R_x and R_z.

Ads judged low are no positives, clicked or not, and are drawn as negatives of the batch. Ads judged
high are no negatives of their query, and its positives if that is asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, ragged_positions
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.data.store.judgements import LOW, Judgements


@dataclass(frozen=True)
class JudgedAds:
    """The judged ads of each train query row."""

    pairs: Csr  # query rows x ads
    grades: NDArray[np.float32]  # (entries,) from 0 to 1
    are_positives: bool = False  # whether ads judged high count as clicked

    @classmethod
    def from_judgements(
        cls, judged: Judgements, num_queries: int, are_positives: bool = False
    ) -> "JudgedAds":
        """Take the judgements of train query rows."""
        order = np.lexsort((judged.ads, judged.queries))
        pairs = Csr.from_pairs(judged.queries, judged.ads, num_queries)
        return cls(pairs, judged.grades[order].astype(np.float32), are_positives)

    @property
    def low(self) -> Csr:
        """The ads judged low of each query."""
        rows, ads = self.pairs.gather(np.arange(self.pairs.num_rows))
        is_low = self.grades < LOW
        return Csr.from_pairs(rows[is_low], ads[is_low], self.pairs.num_rows)

    def applied_to(self, clicks: Csr) -> Csr:
        """Return clicks without the ads judged low, and perhaps with those judged high.

        One that was not clicked has the average weight of the query's clicks.
        """
        rows, ads = clicks.gather(np.arange(clicks.num_rows))
        judged_rows, judged_ads = self.pairs.gather(np.arange(clicks.num_rows))
        is_high = self.grades >= LOW
        judged = _joined(judged_rows, judged_ads)
        clicked = _joined(rows, ads)
        is_kept = ~np.isin(clicked, judged[~is_high])
        is_added = is_high & ~np.isin(judged, clicked) & self.are_positives
        if is_kept.all() and not is_added.any():
            return clicks
        weights = None
        if clicks.cumulative_weights is not None:
            of_clicks = clicks.weights(np.arange(len(ads)))
            totals = np.bincount(rows, of_clicks, clicks.num_rows)
            degrees = np.diff(clicks.indptr)
            means = np.divide(totals, degrees, out=np.ones(len(totals)), where=degrees > 0)
            weights = np.concatenate([of_clicks[is_kept], means[judged_rows[is_added]]])
        return Csr.from_pairs(
            np.concatenate([rows[is_kept], judged_rows[is_added]]),
            np.concatenate([ads[is_kept], judged_ads[is_added]]),
            clicks.num_rows,
            weights,
        )

    def links(self, pool: Int64s, rows: Int64s) -> tuple[Int64s, NDArray[np.float32]]:
        """Return the judged pairs of ``rows`` (b,) and the ascending ads of a ``pool`` (L,).

        These are row place * L + place in pool (links,), and the grade (links,) of each.
        """
        row, ad = self.pairs.gather(rows)
        entries = ragged_positions(self.pairs.indptr[rows], self.pairs.degrees(rows))
        place = np.searchsorted(pool, ad)
        is_there = np.append(pool, -1)[place] == ad
        return (row * len(pool) + place)[is_there], self.grades[entries[is_there]]


def _joined(rows: Int64s, columns: NDArray[Any]) -> Int64s:
    """Return a number for each pair (n,); different pairs have different ones."""
    return rows << 32 | columns


QUERIES = "queries"
ADS = "ads"


class Regularizer(NamedTuple):
    """R_x (side query) or R_z (side ad) of an anchor set: pulls nodes to their anchors."""

    anchor_set: str
    side: Literal["query", "ad"]

    @property
    def name(self) -> str:
        """Its name among the terms of the objective."""
        return f"R_{'x' if self.side == 'query' else 'z'}/{self.anchor_set}"

    @property
    def path(self) -> str:
        """Where its edges are in a folder of graphs."""
        return f"{self.anchor_set}/{self.side}"


Graphs = Mapping[Regularizer, Csr]  # each regulariser's edges: train query rows, or ads, x anchors


def open_graphs(edges: Path, regularizers: Iterable[Regularizer]) -> Graphs:
    """Map the graphs in the folder ``edges``, stored as SET/{query,ad}."""
    return {regularizer: Csr.open(edges / regularizer.path) for regularizer in regularizers}


def anchor_table(anchor_set: str) -> str:
    """Return the name of the table with the texts of a set's anchors."""
    return f"anchors/{anchor_set}"


def node_table(regularizer: Regularizer) -> str:
    """Return the name of the table with the texts of a regulariser's nodes."""
    return QUERIES if regularizer.side == "query" else ADS


@dataclass(frozen=True)
class TrainingData:
    """Texts, clicks (query rows x ads) and edges of a run."""

    query_ids: NDArray[np.int64]  # (train queries,) int64, the ids of the query rows
    clicks: Csr
    # what the regularisers draw from at first; pruning replaces them as training goes
    graphs: Graphs
    # per regulariser, graphs whose edges are never negatives, drawn or not
    known_edges: Mapping[Regularizer, Sequence[Csr]]
    tables: Mapping[str, TokenTable]  # texts of ``queries``, ``ads`` and ``anchors/SET``
    judged: JudgedAds | None = None  # which ``clicks`` follow already

    @cached_property
    def clicked_rows(self) -> Int64s:
        """(clicked queries,) int64, rows of the queries with clicks: what an epoch passes over."""
        return self.clicks.filled_rows

    @classmethod
    def from_prepared(
        cls,
        data: Prepared,
        regularizers: Iterable[Regularizer],
        edges: Path | None = None,
        judged: JudgedAds | None = None,
    ) -> "TrainingData":
        """Map the arrays of a prepared dataset; its own edges always count as known edges.

        Steps draw from the graphs in the folder ``edges``, if it is given, and by what is
        ``judged``.
        """
        own_edges = data.path / "edges"
        graphs = open_graphs(own_edges if edges is None else edges, regularizers)
        known_edges = {regularizer: [graph] for regularizer, graph in graphs.items()}
        if edges not in (None, own_edges):
            for regularizer, graph in open_graphs(own_edges, graphs).items():
                known_edges[regularizer].insert(0, graph)
        sets = {regularizer.anchor_set for regularizer in graphs}
        anchors = {anchor_table(name): data.anchors(name) for name in sorted(sets)}
        tables = {QUERIES: data.queries["train"], ADS: data.ads, **anchors}
        clicks = data.clicks["train"]
        if judged is not None:
            clicks = judged.applied_to(clicks)
        return cls(data.query_ids, clicks, graphs, known_edges, tables, judged)
