"""What each step trains on: pure functions of (seed, epoch, query), whatever the worker count.

A batch takes one query from each of ``batch_size`` lanes; lane l is the l-th equal share of the
globally shuffled queries. A worker owns whole lanes, so it needs to look at its own share only, and
the global batch stays the same for any number of workers that divides the batch size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.csr import Csr
from ramen_ray.data.hashing import keyed_hash, uniforms

_ORDER, _AD, _QUERY_ANCHOR, _AD_ANCHOR = range(4)


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
