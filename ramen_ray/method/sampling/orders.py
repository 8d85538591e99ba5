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
    """Order one epoch's queries at random within their slots.

    Returns:
        (steps, slots) int64, the query rows that each step takes from the given slots.
    """
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
    """Order one epoch's queries so that the clusters follow one another in random order.

    Returns:
        (steps, slots) int64, as in :func:`random_order`; a batch may span several clusters.
    """
    num_queries, num_clusters = len(clusters.rows), clusters.num_clusters
    bounds = np.arange(num_clusters + 1) * num_queries // num_clusters
    shuffled = np.argsort(keyed_hash((seed, epoch, Stream.CLUSTERS), np.arange(num_clusters)))
    places = ragged_positions(bounds[shuffled], np.diff(bounds)[shuffled])
    steps = num_steps(num_queries, batch_size)
    batches = clusters.rows[places[: steps * batch_size]].reshape(steps, batch_size)
    return batches[:, slots.start : slots.stop]
