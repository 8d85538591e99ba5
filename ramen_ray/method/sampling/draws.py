"""What each step trains on: pure functions of (seed, epoch, query), whatever the worker count.

A batch takes one query from each of ``batch_size`` lanes, and a worker owns whole lanes: the global
batch stays the same for any number of workers that divides the batch size. In random order lane l
is the l-th equal share of the globally shuffled queries, so that a worker needs to look at its own
share only; in clustered order, which keeps similar queries together, a lane passes through all.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr, ragged_positions
from ramen_ray.data.prepared.hashing import keyed_hash, uniforms
from ramen_ray.method.sampling.clustering import Clusters

_ORDER, _AD, _ANCHOR, _CLUSTERS, _HARD_NEGATIVES = range(5)


def num_steps(num_queries: int, batch_size: int) -> int:
    """Return the steps of an epoch; each leaves out the ``num_queries % batch_size`` last drawn."""
    return num_queries // batch_size


def epoch_order(
    num_queries: int, batch_size: int, lanes: range, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Order one epoch's queries within their lanes.

    Returns:
        (steps, lanes) int64, the query rows that each step takes from the given lanes.
    """
    bounds = np.arange(lanes.start, lanes.stop + 1, dtype=np.int64) * num_queries // batch_size
    starts, lengths = bounds[:-1], np.diff(bounds)
    offsets = np.arange(lengths.max())
    rows = starts[:, None] + offsets
    keys = keyed_hash((seed, epoch, _ORDER), rows)
    keys[offsets >= lengths[:, None]] = np.iinfo(np.uint64).max
    order = np.argsort(keys, axis=1, kind="stable")[:, : num_steps(num_queries, batch_size)]
    return (starts[:, None] + order).T


def clustered_order(
    clusters: Clusters, batch_size: int, lanes: range, seed: int, epoch: int
) -> Int64s:
    """Order one epoch's queries so that the clusters follow one another in random order.

    Returns:
        (steps, lanes) int64, as :func:`epoch_order`; batches are cut without regard to where
        clusters end.
    """
    num_queries, num_clusters = len(clusters.rows), clusters.num_clusters
    bounds = np.arange(num_clusters + 1) * num_queries // num_clusters
    shuffled = np.argsort(keyed_hash((seed, epoch, _CLUSTERS), np.arange(num_clusters)))
    places = ragged_positions(bounds[shuffled], np.diff(bounds)[shuffled])
    steps = num_steps(num_queries, batch_size)
    batches = clusters.rows[places[: steps * batch_size]].reshape(steps, batch_size)
    return batches[:, lanes.start : lanes.stop]


class Regularizer(NamedTuple):
    """R_x (side query) or R_z (side ad) of an anchor set: draws nodes to their anchors."""

    anchor_set: str
    side: Literal["query", "ad"]

    @property
    def term(self) -> str:
        """Its name among the terms of the loss."""
        return f"R_{'x' if self.side == 'query' else 'z'}/{self.anchor_set}"

    @property
    def path(self) -> str:
        """Where its edges lie in a folder of graphs."""
        return f"{self.anchor_set}/{self.side}"

    @property
    def node_column(self) -> int:
        """The column of a draw that holds its nodes."""
        return 0 if self.side == "query" else 1


Graphs = Mapping[Regularizer, Csr]
"""Each regulariser's edges: query rows, or ads, x anchors."""


def draw(
    query_rows: Int64s,
    query_ids: NDArray[Any],
    clicks: Csr,
    graphs: Graphs,
    key: tuple[int, int],
) -> Int64s:
    """Draw each query's ad (uniform) and, per regulariser, an anchor of its node (by edge weight).

    Args:
        query_rows: (b,) rows of the queries in ``clicks`` and the graphs of side query.
        query_ids: (b,) the queries' ids, which seed the draws.
        clicks: query rows x ads.
        graphs: of K regularisers.
        key: (seed, epoch).

    Returns:
        (b, 2 + K) int64: query row, ad, then each regulariser's anchor; -1 where its node has no
        edges.
    """
    ads = clicks.draw(query_rows, uniforms((*key, _AD), query_ids))
    columns = [query_rows, ads]
    for number, (regularizer, edges) in enumerate(graphs.items()):
        nodes = columns[regularizer.node_column]
        columns.append(edges.draw(nodes, uniforms((*key, _ANCHOR, number), query_ids)))
    return np.stack(columns, axis=1)


def draw_hard_negatives(
    shortlists: NDArray[np.int32],
    query_rows: Int64s,
    query_ids: NDArray[Any],
    num_negatives: int,
    key: tuple[int, int],
) -> Int64s:
    """Draw distinct ads from each query's shortlist, uniformly.

    Args:
        shortlists: (queries, size) ads, -1 after the last of a query.
        query_rows: (b,) rows of the queries.
        query_ids: (b,) the queries' ids, which seed the draws.
        num_negatives: n.
        key: (seed, epoch).

    Returns:
        (b, n) int64 ads; -1 where a shortlist has fewer than n.
    """
    ads = shortlists[query_rows].astype(np.int64)
    size = ads.shape[1]
    places = query_ids[:, None] * size + np.arange(size)
    keys = keyed_hash((*key, _HARD_NEGATIVES), places)
    keys[ads < 0] = np.iinfo(np.uint64).max
    chosen = np.argsort(keys, axis=1)[:, :num_negatives]
    return np.take_along_axis(ads, chosen, axis=1)
