"""What a run trains on: texts, clicks, and the graphs of its regularisers R_x and R_z."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.method.sampling.judged import JudgedAds

QUERIES, ADS = "queries", "ads"


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
