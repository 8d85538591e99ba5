"""What each step trains on: pure functions of (seed, epoch, query), whatever the worker count.

A batch takes one query from each of ``batch_size`` lanes, and a worker owns whole lanes: the global
batch stays the same for any number of workers that divides the batch size. In random order lane l
is the l-th equal share of the globally shuffled queries, so that a worker needs to look at its own
share only; in clustered order, which keeps similar queries together, a lane passes through all.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.csr import Csr, ragged_positions
from ramen_ray.data.hashing import keyed_hash, uniforms
from ramen_ray.method.clustering import Clusters

_ORDER, _AD, _QUERY_ANCHOR, _AD_ANCHOR, _CLUSTERS, _HARD_NEGATIVES = range(6)


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


@dataclass(frozen=True)
class Graph:
    """One anchor set's edges: ``query`` is query rows x anchors, ``ad`` is ads x anchors."""

    query: Csr
    ad: Csr


def draw(
    query_rows: Int64s,
    query_ids: NDArray[Any],
    clicks: Csr,
    graphs: list[Graph],
    key: tuple[int, int],
) -> Int64s:
    """Draw each query's ad (uniform) and, per anchor set, an anchor of each (by edge weight).

    Args:
        query_rows: (b,) rows of the queries in ``clicks`` and the graphs' query sides.
        query_ids: (b,) the queries' ids, which seed the draws.
        clicks: query rows x ads.
        graphs: one per anchor set.
        key: (seed, epoch).

    Returns:
        (b, 2 + 2 T) int64: query row, ad, then per anchor set the query's anchor and the ad's
        anchor; -1 where a node has no edges.
    """
    ads = clicks.draw(query_rows, uniforms((*key, _AD), query_ids))
    columns = [query_rows, ads]
    for number, graph in enumerate(graphs):
        for side, nodes, edges in (
            (_QUERY_ANCHOR, query_rows, graph.query),
            (_AD_ANCHOR, ads, graph.ad),
        ):
            columns.append(edges.draw(nodes, uniforms((*key, side, number), query_ids)))
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
