"""The batches of a run: what each step draws, by name.

Shapes: b queries of this worker and B of the global batch, P ads and H hard negatives per
query, n nodes of a regulariser.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramen_ray.bases import NodeChoice
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr, cumulative_sum
from ramen_ray.data.prepared.hashing import uniforms
from ramen_ray.method.distributed import gather_rows, world
from ramen_ray.method.sampling.clustering import Clusters
from ramen_ray.method.sampling.draws import (
    Stream,
    clustered_order,
    draw_ads,
    draw_hard_negatives,
    draw_nodes,
    random_order,
)
from ramen_ray.method.sampling.training_data import (
    ADS,
    QUERIES,
    Graphs,
    Regularizer,
    TrainingData,
    anchor_table,
    node_table,
)


class NodeAnchors(NamedTuple):
    """Nodes (n,) of a regulariser, and the anchor (n,) that each drew."""

    nodes: Int64s
    anchors: Int64s


@dataclass(frozen=True)
class Batch:
    """What a step draws; ids are int64, and -1 means that nothing was drawn."""

    queries: Int64s  # (b,) rows of train queries
    ads: Int64s  # (b, P) ads that were clicked for each query
    hard_negatives: Int64s  # (b, H) ads that were never clicked for each query
    # per regulariser, its nodes, which need not be of the batch, and their anchors
    anchors: Mapping[Regularizer, NodeAnchors]

    def drawn(self) -> list[tuple[str, Int64s]]:
        """List all ids with the names of the tables that have their texts."""
        parts = [(QUERIES, self.queries), (ADS, self.ads), (ADS, self.hard_negatives)]
        for regularizer, (nodes, anchors) in self.anchors.items():
            parts += [(node_table(regularizer), nodes)]
            parts += [(anchor_table(regularizer.anchor_set), anchors)]
        return parts

    def gathered(self) -> "Batch":
        """Return the global batch by one collective of the workers' CPUs."""
        num_workers = world()[1]
        if num_workers == 1:
            return self
        parts = [ids for _, ids in self.drawn()]
        flat = np.concatenate([ids.reshape(-1) for ids in parts])
        of_workers = gather_rows(flat[None])
        ends = np.cumsum([ids.size for ids in parts])[:-1]
        queries, ads, hard_negatives, *rest = (
            whole.reshape(num_workers * len(ids), *ids.shape[1:])
            for whole, ids in zip(np.split(of_workers, ends, axis=1), parts, strict=True)
        )
        pairs = map(NodeAnchors, rest[::2], rest[1::2])
        return Batch(queries, ads, hard_negatives, dict(zip(self.anchors, pairs, strict=True)))


@dataclass(frozen=True)
class DrawState:
    """The state of the draws: what batches are drawn from now; replaced as the run goes on."""

    graphs: Graphs  # one graph per regulariser
    # queries of a cluster come in the same batches; None for random order
    clusters: Clusters | None = None
    # (train queries, size) ads to draw hard negatives from; None to draw none
    shortlists: NDArray[np.int32] | None = None


@dataclass
class Sampler:
    """Draws this worker's share of each batch."""

    data: TrainingData
    batch_size: int  # B, queries of a global batch
    seed: int
    # what a query's ads are drawn from, by its weights; None for ``data.clicks``
    clicks: Csr | None = None
    num_hard_negatives: int = 0  # H; batches have as many columns before there are shortlists
    # ``all`` draws B nodes for each regulariser, uniformly among those with edges: the paper's sums
    # run over all ads (section 3.1). ``rare`` draws them in proportion to 1 / (1 + train clicks).
    # ``clicked`` takes the batch's queries and ads, as the paper's training does (section 3.2); ads
    # without clicks are then never drawn
    nodes: NodeChoice = "all"
    num_positives: int = 1  # P; more than one for losses over several of a query's ads
    _order: tuple[int, Clusters | None, Int64s] | None = field(default=None, init=False)
    _linked: dict[Regularizer, tuple[Csr, Csr]] = field(default_factory=dict, init=False)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch, which leaves out queries that do not fill a batch."""
        return len(self.data.clicked_rows) // self.batch_size

    @property
    def slots(self) -> range:
        """This worker's places in the global batch."""
        rank, num_workers = world()
        share = self.batch_size // num_workers
        return range(rank * share, (rank + 1) * share)

    def draw(self, step: int, draws: DrawState, regularizers: Collection[Regularizer]) -> Batch:
        """Draw a step's batch, with anchors for ``regularizers``."""
        epoch, position = divmod(step, self.steps_per_epoch)
        rows = self._order_of(epoch, draws.clusters)[position]
        ids, key = self.data.query_ids[rows], (self.seed, epoch)
        clicks = self.data.clicks if self.clicks is None else self.clicks
        ads = draw_ads(clicks, rows, ids, key, self.num_positives)
        anchors = {}
        # numbered before any is left out, so that draws do not depend on which others are due
        for number, (regularizer, edges) in enumerate(draws.graphs.items()):
            if regularizer not in regularizers:
                continue
            if self._draws_nodes(regularizer):
                linked, step_key = self._linked_nodes(regularizer, edges), (self.seed, step)
                anchors[regularizer] = NodeAnchors(
                    *draw_nodes(edges, linked, self.slots, step_key, number)
                )
            else:
                own = rows if regularizer.side == "query" else ads[:, 0]
                chances = uniforms((*key, Stream.ANCHOR, number), ids)
                anchors[regularizer] = NodeAnchors(own, edges.draw(own, chances))
        hard_negatives = np.full((len(rows), self.num_hard_negatives), -1, dtype=np.int64)
        if draws.shortlists is not None:
            hard_negatives = draw_hard_negatives(
                draws.shortlists, rows, ids, self.num_hard_negatives, key
            )
        return Batch(rows, ads, hard_negatives, anchors)

    def _draws_nodes(self, regularizer: Regularizer) -> bool:
        """Whether a regulariser draws its own nodes instead of taking the batch's."""
        if self.nodes == "clicked":
            return False
        # if all queries have clicks, an epoch passes through all of them anyway
        has_all = len(self.data.clicked_rows) == len(self.data.query_ids)
        return regularizer.side == "ad" or not has_all

    def _linked_nodes(self, regularizer: Regularizer, edges: Csr) -> Csr:
        """Return a single row: the nodes that have edges; kept until the graph changes."""
        if regularizer not in self._linked or self._linked[regularizer][0] is not edges:
            linked, weights = edges.filled_rows, None
            if self.nodes == "rare":
                clicks = self.data.clicks
                of_ads = np.bincount(clicks.indices, minlength=edges.num_rows)
                counts = of_ads if regularizer.side == "ad" else np.diff(clicks.indptr)
                weights = cumulative_sum(1 / (1 + counts[linked]))
            row = Csr(np.array([0, len(linked)]), linked, weights)
            self._linked[regularizer] = edges, row
        return self._linked[regularizer][1]

    def _order_of(self, epoch: int, clusters: Clusters | None) -> Int64s:
        """Return the query rows (steps, b) of an epoch; kept until the epoch or clusters change."""
        if self._order is None or self._order[0] != epoch or self._order[1] is not clusters:
            if clusters is None:
                num_queries = len(self.data.clicked_rows)
                places = random_order(num_queries, self.batch_size, self.slots, self.seed, epoch)
            else:
                places = clustered_order(clusters, self.batch_size, self.slots, self.seed, epoch)
            self._order = epoch, clusters, self.data.clicked_rows[places]
        return self._order[2]
