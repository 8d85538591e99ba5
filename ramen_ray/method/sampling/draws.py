"""Random draws for queries and nodes, and the order of an epoch's queries.

All are pure functions of seed, epoch and query, whatever the number of workers. A batch takes one
query from each of ``batch_size`` slots, and a worker owns whole slots. In random order slot i is
the i-th equal share of the globally shuffled queries, so a worker needs only its own share. In
clustered order, which keeps similar queries together, a slot takes queries from all of them.

Shapes: b queries, P ads and H hard negatives of each. A key is (seed, epoch), or (seed, step) for
nodes; where a row has too few to draw from, -1 comes after them.
"""

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, UInt64s, best_of_each
from ramen_ray.data.prepared.csr import Csr, ragged_positions
from ramen_ray.data.prepared.hashing import keyed_hash, uniforms
from ramen_ray.method.sampling.clustering import Clusters


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


def random_order(num_queries: int, batch_size: int, slots: range, seed: int, epoch: int) -> Int64s:
    """Return the query rows (steps, slots) that an epoch's steps take from the given slots."""
    bounds = np.arange(slots.start, slots.stop + 1, dtype=np.int64) * num_queries // batch_size
    starts, lengths = bounds[:-1], np.diff(bounds)
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
    num_queries, num_clusters = len(clusters.rows), clusters.num_clusters
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
    """Draw distinct ads (b, P) of queries (b,), which their ids (b,) seed, by their weights."""
    if num_ads == 1:
        return clicks.draw(query_rows, uniforms((*key, Stream.AD), query_ids))[:, None]
    own_keys = keyed_hash((*key, Stream.AD), query_ids)
    return draw_several(clicks, query_rows, own_keys, num_ads, (*key, Stream.FURTHER_ADS))


def draw_several(
    edges: Csr, query_rows: Int64s, own_keys: UInt64s, count: int, key: tuple[int, ...]
) -> Int64s:
    """Draw distinct columns (b, count) of rows (b,) under ``own_keys`` (b,), by weight."""
    rows, columns = edges.gather(query_rows)
    starts, degrees = edges.indptr[query_rows], edges.degrees(query_rows)
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


def draw_nodes(
    edges: Csr, linked: Csr, slots: range, key: tuple[int, int], number: int
) -> tuple[Int64s, Int64s]:
    """Draw for each slot of the global batch a node and an anchor of it, (slots,) int64 each.

    ``linked`` is a single row: the nodes with edges, by the weights that they are drawn with. If
    there are none, the anchors are -1. ``number`` tells the run's regularisers apart.
    """
    places = np.arange(slots.start, slots.stop)
    if not len(linked.indices):
        return np.zeros_like(places), np.full_like(places, -1)
    nodes = linked.draw(np.zeros_like(places), uniforms((*key, Stream.NODE, number), places))
    return nodes, edges.draw(nodes, uniforms((*key, Stream.NODE_ANCHOR, number), places))


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
