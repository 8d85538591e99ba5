"""The order of an epoch's queries: a pure function of seed and epoch, whatever the worker count.

A batch takes one query from each of ``batch_size`` slots, and a worker owns whole slots: the global
batch stays the same for any number of workers that divides the batch size. In random order slot i
is the i-th equal share of the globally shuffled queries, so a worker needs only its own share. In
clustered order, which keeps similar queries together, a slot takes queries from all of them.
"""

import numpy as np

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import ragged_positions
from ramen_ray.data.prepared.hashing import keyed_hash
from ramen_ray.method.sampling.clustering import Clusters
from ramen_ray.method.sampling.draws import Stream


def num_steps(num_queries: int, batch_size: int) -> int:
    """Return the steps of an epoch; the last ``num_queries % batch_size`` queries are left out."""
    return num_queries // batch_size


def random_order(num_queries: int, batch_size: int, slots: range, seed: int, epoch: int) -> Int64s:
    """Return the query rows (steps, slots) that an epoch's steps take from the given slots."""
    bounds = np.arange(slots.start, slots.stop + 1, dtype=np.int64) * num_queries // batch_size
    starts, lengths = bounds[:-1], np.diff(bounds)
    offsets = np.arange(lengths.max())
    rows = starts[:, None] + offsets
    keys = keyed_hash((seed, epoch, Stream.ORDER), rows)
    keys[offsets >= lengths[:, None]] = np.iinfo(np.uint64).max
    order = np.argsort(keys, axis=1, kind="stable")[:, : num_steps(num_queries, batch_size)]
    return (starts[:, None] + order).T


def clustered_order(
    clusters: Clusters, batch_size: int, slots: range, seed: int, epoch: int
) -> Int64s:
    """Return query rows (steps, slots) as :func:`random_order`, with the clusters in random order.

    A batch may span several clusters. If there are as many clusters as steps, each fills a batch.
    """
    num_queries, num_clusters = len(clusters.rows), clusters.num_clusters
    steps = num_steps(num_queries, batch_size)
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
