"""The batches of a run: what each step draws, and what counts as negative to what.

Shapes: b local rows, B rows of the global batch, C = 2 + K + H columns of a draw with K
regularisers and H hard negatives, L candidates of a pool, D width of an embedding.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.sampling.clustering import Clusters
from ramen_ray.method.sampling.draws import (
    Graphs,
    Regularizer,
    clustered_order,
    draw,
    draw_hard_negatives,
    epoch_order,
    num_steps,
)
from ramen_ray.method.training.distributed import world


def open_graphs(edges: Path, regularizers: Iterable[Regularizer]) -> Graphs:
    """Map the graphs that lie in ``edges`` as SET/{query,ad}."""
    return {one: Csr.open(edges / one.path) for one in regularizers}


class Batches:
    """The batches of a run: which texts each step encodes and what is positive to what.

    Attributes:
        truths: per regulariser, the graphs whose edges are no negatives, drawn or not.
        clusters: the order of the coming epochs' queries; None stands for random order.
        shortlists: (train queries, size) ads to draw hard negatives from; None draws none.
        seen: (train queries, D), where steps leave their queries' embeddings; None keeps none.
    """

    def __init__(
        self,
        query_ids: NDArray[np.int64],
        clicks: Csr,
        graphs: Graphs,
        tables: list[TokenTable],
        batch_size: int,
        seed: int,
    ) -> None:
        """Draw from clicks and graphs whose rows are those of ``query_ids``.

        Args:
            query_ids: (train queries,) the ids of the query rows.
            clicks: query rows x ads.
            graphs: one per regulariser.
            tables: texts of queries and ads, then of each regulariser's anchors.
            batch_size: queries of a global batch.
            seed: of all draws.
        """
        self.query_ids = query_ids
        self.clicks = clicks
        self.graphs = graphs
        self.truths = {one: [edges] for one, edges in graphs.items()}
        self.tables = tables
        self.batch_size = batch_size
        self.seed = seed
        self.steps_per_epoch = num_steps(len(query_ids), batch_size)
        self.clusters: Clusters | None = None
        self.shortlists: NDArray[np.int32] | None = None
        self.seen: Tensor | None = None
        self._epoch = -1
        self._order = np.empty((0, 0), dtype=np.int64)

    @classmethod
    def of(
        cls,
        data: Prepared,
        regularizers: Iterable[Regularizer],
        batch_size: int,
        seed: int,
        edges: Path | None = None,
    ) -> "Batches":
        """Map the tables of a prepared dataset.

        Where ``edges`` holds a graph to draw from in place of its own, the own edges are no
        negatives either.
        """
        own_edges = data.path / "edges"
        graphs = open_graphs(own_edges if edges is None else edges, regularizers)
        anchors = [data.anchors(regularizer.anchor_set) for regularizer in graphs]
        tables = [data.queries["train"], data.ads, *anchors]
        batches = cls(data.query_ids, data.clicks["train"], graphs, tables, batch_size, seed)
        if edges not in (None, own_edges):
            own = open_graphs(own_edges, regularizers)
            batches.truths = {one: [own[one], graphs[one]] for one in graphs}
        return batches

    def expect_hard_negatives(self, per_query: int) -> None:
        """Make room for ads drawn from the shortlists, whether there are shortlists yet or not."""
        self.tables = [*self.tables, *[self.tables[1]] * per_query]

    @property
    def hard_columns(self) -> list[int]:
        """Columns of a draw that hold hard negatives."""
        return list(range(2 + len(self.graphs), len(self.tables)))

    def anchor_columns(self, anchor_set: str) -> list[int]:
        """Columns of a draw that hold anchors of a set."""
        of_set = (regularizer.anchor_set == anchor_set for regularizer in self.graphs)
        return [column for column, belongs in enumerate(of_set, start=2) if belongs]

    def draw(self, step: int, with_anchors: bool = True) -> Int64s:
        """Return this worker's share (b, C) of a step's draws.

        The columns are those of :func:`~ramen_ray.method.sampling.draws.draw`, then the hard
        negatives.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self._order_of(epoch), epoch
        rows = self._order[position]
        ids, key = self.query_ids[rows], (self.seed, epoch)
        drawn = draw(rows, ids, self.clicks, self.graphs, key)
        if not with_anchors:
            drawn[:, 2:] = -1
        num_hard = len(self.hard_columns)
        if self.shortlists is None:
            return np.pad(drawn, [(0, 0), (0, num_hard)], constant_values=-1)
        return np.hstack([drawn, draw_hard_negatives(self.shortlists, rows, ids, num_hard, key)])

    def _order_of(self, epoch: int) -> Int64s:
        rank, num_workers = world()
        share = self.batch_size // num_workers
        lanes = range(rank * share, (rank + 1) * share)
        if self.clusters is not None:
            return clustered_order(self.clusters, self.batch_size, lanes, self.seed, epoch)
        return epoch_order(len(self.query_ids), self.batch_size, lanes, self.seed, epoch)


@dataclass(frozen=True)
class Pool:
    """The distinct candidates of a global batch: ascending ids, and where their texts stand."""

    ids: Int64s
    positions: Int64s

    @classmethod
    def of(cls, draws: Int64s, position: Int64s, columns: list[int]) -> "Pool":
        """Collect what the given columns of ``draws`` (B, C) drew."""
        ids, first = np.unique(draws[:, columns], return_index=True)
        present = ids >= 0
        return cls(ids[present], position[:, columns].reshape(-1)[first[present]])

    def find(self, drawn: Int64s) -> Int64s:
        """Return where ``drawn`` ids (b,) stand in the pool; -1 for -1."""
        return np.where(drawn >= 0, np.searchsorted(self.ids, drawn), -1)

    def is_positive(self, truths: Iterable[Csr], rows: Int64s) -> NDArray[np.bool_]:
        """Mark the pool's candidates that a truth links to ``rows`` (b,); returns (b, L) bool."""
        mask = np.zeros((len(rows), len(self.ids)), dtype=bool)
        for truth in truths:
            row, candidate = truth.gather(rows)
            place = np.minimum(np.searchsorted(self.ids, candidate), len(self.ids) - 1)
            known = self.ids[place] == candidate
            mask[row[known], place[known]] = True
        return mask
