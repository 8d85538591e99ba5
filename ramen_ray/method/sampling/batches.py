"""The batches of a run: what each step draws, by name, and the order of an epoch's queries.

All draws are pure functions of seed, epoch and query, whatever the number of workers. A batch takes
one query from each of ``batch_size`` slots, and a worker owns whole slots. In random order slot i
is the i-th equal share of the globally shuffled queries, so a worker needs only its own share; in
clustered order a slot takes queries from all of them.

Shapes: b queries of this worker and B of the global batch, P ads and H hard negatives per query, n
nodes of a regulariser. A key is (seed, epoch), or (seed, step) for nodes; a row with too few to
draw from is filled up with -1.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ramen_ray.bases import NodeChoice
from ramen_ray.data.arrays import (
    Int64s,
    UInt64s,
    best_of_each,
    keyed_hash,
    ragged_positions,
    uniforms,
)
from ramen_ray.data.prepared.csr import Csr, cumulative_sum
from ramen_ray.method.distributed import gather_own, own_range, world
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
    hard_negatives: Int64s  # (b, H) further ads of the pool: hard negatives, and judged ads
    # (b, H) further ads of the pool whose texts are not encoded: negatives of classifiers alone
    unencoded: Int64s
    # per regulariser, its nodes, which need not be of the batch, and their anchors
    anchors: Mapping[Regularizer, NodeAnchors]

    def drawn(self) -> list[tuple[str, Int64s]]:
        """List all ids that are encoded, with the names of the tables that have their texts."""
        parts = [(QUERIES, self.queries), (ADS, self.ads), (ADS, self.hard_negatives)]
        for regularizer, (nodes, anchors) in self.anchors.items():
            parts += [(node_table(regularizer), nodes)]
            parts += [(anchor_table(regularizer.anchor_set), anchors)]
        return parts

    def gathered(self, batch_size: int) -> "Batch":
        """Return the global batch, of ``batch_size`` queries, by one collective of all CPUs."""
        if world()[1] == 1:
            return self
        parts = [self.unencoded]
        parts += [ids.reshape(len(ids), -1) for _, ids in self.drawn()]
        local = torch.from_numpy(np.concatenate(parts, axis=1))
        ends = np.cumsum([ids.shape[1] for ids in parts])[:-1]
        columns = np.split(gather_own(local, batch_size).numpy(), ends, axis=1)
        unencoded, queries, ads, hard_negatives, *rest = map(np.ascontiguousarray, columns)
        pairs = map(NodeAnchors, *([ids[:, 0] for ids in rest[kind::2]] for kind in (0, 1)))
        anchors = dict(zip(self.anchors, pairs, strict=True))
        return Batch(queries[:, 0], ads, hard_negatives, unencoded, anchors)


@dataclass(frozen=True)
class Clusters:
    """Rows in clusters whose sizes differ by at most one."""

    rows: Int64s  # (N,) int64, a permutation of the rows, one cluster after another
    num_clusters: int  # K; cluster i is ``rows[i * N // K : (i + 1) * N // K]``


@dataclass(frozen=True)
class SamplingSources:
    """What batches are drawn from; it is replaced as the run goes on."""

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
    # J; that many of each query's ``judged`` ads join its hard negatives, in columns after these
    num_judged: int = 0
    judged: Csr | None = None
    encodes_hard_negatives: bool = True  # else they are negatives of classifiers alone
    _order: tuple[int, Clusters | None, Int64s] | None = field(default=None, init=False)
    _linked: dict[Regularizer, tuple[Csr, Csr]] = field(default_factory=dict, init=False)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch, which leaves out queries that do not fill a batch."""
        return len(self.data.clicked_rows) // self.batch_size

    @property
    def slots(self) -> range:
        """This worker's places in the global batch."""
        places = own_range(self.batch_size)
        return range(int(places[0]), int(places[-1]) + 1)

    def draw(
        self, step: int, sources: SamplingSources, regularizers: Collection[Regularizer]
    ) -> Batch:
        """Draw a step's batch, with anchors for ``regularizers``."""
        epoch, position = divmod(step, self.steps_per_epoch)
        rows = self._order_of(epoch, sources.clusters)[position]
        ids = self.data.query_ids[rows]
        key = (self.seed, epoch)
        clicks = self.data.clicks if self.clicks is None else self.clicks
        ads = draw_ads(clicks, rows, ids, key, self.num_positives)
        # numbered before any is left out, so that draws do not depend on which others are due
        anchors = {
            regularizer: self._draw_anchors(regularizer, number, edges, step, rows, ads[:, 0])
            for number, (regularizer, edges) in enumerate(sources.graphs.items())
            if regularizer in regularizers
        }
        hard_negatives = np.full((len(rows), self.num_hard_negatives), -1, dtype=np.int64)
        if sources.shortlists is not None:
            hard_negatives = draw_hard_negatives(
                sources.shortlists, rows, ids, self.num_hard_negatives, key
            )
        unencoded = hard_negatives[:, :0]
        if not self.encodes_hard_negatives:
            hard_negatives, unencoded = unencoded, hard_negatives
        if self.judged is not None:
            own_keys = keyed_hash((*key, Stream.JUDGED), ids)
            drawn = draw_several(
                self.judged, rows, own_keys, self.num_judged, (*key, Stream.JUDGED)
            )
            hard_negatives = np.hstack([hard_negatives, drawn])
        return Batch(rows, ads, hard_negatives, unencoded, anchors)

    def _draw_anchors(
        self,
        regularizer: Regularizer,
        number: int,
        edges: Csr,
        step: int,
        queries: Int64s,
        ads: Int64s,
    ) -> NodeAnchors:
        """Draw a regulariser's nodes, or take the batch's, and draw an anchor for each."""
        is_query = regularizer.side == "query"
        # if all queries have clicks, an epoch passes through all of them anyway
        has_all = len(self.data.clicked_rows) == len(self.data.query_ids)
        if self.nodes == "clicked" or (is_query and has_all):
            nodes = queries if is_query else ads
            key = self.seed, step // self.steps_per_epoch, Stream.ANCHOR, number
            return NodeAnchors(
                nodes, edges.draw(nodes, uniforms(key, self.data.query_ids[queries]))
            )
        linked = self._linked_nodes(regularizer, edges)
        places = np.array(self.slots)
        if not len(linked.indices):
            return NodeAnchors(np.zeros_like(places), np.full_like(places, -1))
        chances = uniforms((self.seed, step, Stream.NODE, number), places)
        nodes = linked.draw(np.zeros_like(places), chances)
        chances = uniforms((self.seed, step, Stream.NODE_ANCHOR, number), places)
        return NodeAnchors(nodes, edges.draw(nodes, chances))

    def _linked_nodes(self, regularizer: Regularizer, edges: Csr) -> Csr:
        """Return a single row: the nodes that have edges; kept until the graph changes."""
        if regularizer not in self._linked or self._linked[regularizer][0] is not edges:
            linked = edges.filled_rows
            weights = None
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


class Stream(IntEnum):
    """Keeps the random numbers of different draws apart; other values would change all runs."""

    ORDER = 0
    AD = 1
    ANCHOR = 2
    CLUSTERS = 3
    HARD_NEGATIVES = 4
    NODE = 5
    NODE_ANCHOR = 6
    FURTHER_ADS = 7
    # 8 is taken by the links of OAK
    IN_CLUSTER = 9
    JUDGED = 10


def random_order(num_queries: int, batch_size: int, slots: range, seed: int, epoch: int) -> Int64s:
    """Return the query rows (steps, slots) that an epoch's steps take from the given slots."""
    bounds = np.arange(slots.start, slots.stop + 1, dtype=np.int64) * num_queries // batch_size
    starts = bounds[:-1]
    lengths = np.diff(bounds)
    offsets = np.arange(lengths.max())
    rows = starts[:, None] + offsets
    keys = keyed_hash((seed, epoch, Stream.ORDER), rows)
    keys[offsets >= lengths[:, None]] = np.iinfo(np.uint64).max
    order = np.argsort(keys, axis=1, kind="stable")[:, : num_queries // batch_size]
    return (starts[:, None] + order).T


def clustered_order(
    clusters: Clusters, batch_size: int, slots: range, seed: int, epoch: int
) -> Int64s:
    """Return query rows (steps, slots) as :func:`random_order`, with the clusters in random order.

    A batch may span several clusters. If there are as many clusters as steps, each fills a batch.
    """
    num_queries = len(clusters.rows)
    num_clusters = clusters.num_clusters
    steps = num_queries // batch_size
    bounds = np.arange(num_clusters + 1) * num_queries // num_clusters
    sizes = np.diff(bounds)
    shuffled = np.argsort(keyed_hash((seed, epoch, Stream.CLUSTERS), np.arange(num_clusters)))
    rows = clusters.rows
    if num_clusters == steps:
        # A cluster has a few queries more than a batch: leave others out in each epoch.
        keys = keyed_hash((seed, epoch, Stream.IN_CLUSTER), rows)
        rows = rows[np.lexsort((keys, np.repeat(np.arange(num_clusters), sizes)))]
        sizes = np.full(num_clusters, batch_size)
    places = ragged_positions(bounds[shuffled], sizes[shuffled])
    batches = rows[places[: steps * batch_size]].reshape(steps, batch_size)
    return batches[:, slots.start : slots.stop]


def draw_ads(
    clicks: Csr, query_rows: Int64s, query_ids: NDArray[Any], key: tuple[int, int], num_ads: int = 1
) -> Int64s:
    """Draw distinct ads (b, P) of queries (b,) by weight, seeded by the queries' ids (b,)."""
    if num_ads == 1:
        return clicks.draw(query_rows, uniforms((*key, Stream.AD), query_ids))[:, None]
    own_keys = keyed_hash((*key, Stream.AD), query_ids)
    return draw_several(clicks, query_rows, own_keys, num_ads, (*key, Stream.FURTHER_ADS))


def draw_several(
    edges: Csr, query_rows: Int64s, own_keys: UInt64s, count: int, key: tuple[int, ...]
) -> Int64s:
    """Draw distinct columns (b, count) of rows (b,) by weight, seeded by ``own_keys`` (b,)."""
    rows, columns = edges.gather(query_rows)
    starts = edges.indptr[query_rows]
    degrees = edges.degrees(query_rows)
    places = ragged_positions(np.zeros_like(degrees), degrees)
    chances = uniforms(key, own_keys[rows] ^ keyed_hash((), places))
    # Those with the highest log(u) / weight of a uniform u are drawn, as successive draws without
    # replacement would do (Efraimidis and Spirakis 2006).
    log_chances = np.log1p(-chances)
    if edges.cumulative_weights is not None:
        log_chances /= edges.weights(ragged_positions(starts, degrees))
    drawn = np.full((len(query_rows), count), -1, dtype=np.int64)
    kept, ranks = best_of_each(rows, count, -log_chances)
    drawn[rows[kept], ranks] = columns[kept]
    return drawn


def draw_hard_negatives(
    shortlists: NDArray[np.int32],
    query_rows: Int64s,
    query_ids: NDArray[Any],
    num_negatives: int,
    key: tuple[int, int],
) -> Int64s:
    """Draw distinct ads (b, H) from the ``shortlists`` (queries, size) of ``query_rows`` (b,)."""
    ads = shortlists[query_rows]
    size = ads.shape[1]
    places = query_ids[:, None] * size + np.arange(size)
    keys = keyed_hash((*key, Stream.HARD_NEGATIVES), places)
    keys[ads < 0] = np.iinfo(np.uint64).max  # what is no ad comes last
    chosen = keys.argpartition(min(num_negatives, size) - 1, axis=1)[:, :num_negatives]
    return np.take_along_axis(ads, chosen, axis=1).astype(np.int64)
