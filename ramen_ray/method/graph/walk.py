"""Random walks with restart over a bipartite graph of nodes and anchors (RAMEN, appendix A).

A walk is a chain of hops, all from and to nodes. One hop goes node -> anchor -> node, each drawn
uniformly among the neighbours, and *visits* an anchor of the node that it reaches, also drawn
uniformly. Before each hop the walk goes back to its start with the restart probability. So at the
k-th hop it leaves from the distribution p_k = r e + (1 - r) p_{k-1} N A, with e its start, p_0 = e,
and N and A the transition matrices node -> anchor and anchor -> node; visits follow p_k N A N. A
hop that meets a dead end visits nothing, and the next one leaves from the start.

Edge weights are ignored, and anchors with many edges are left out.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from ramen_ray.data.arrays import mix
from ramen_ray.data.prepared.csr import Csr, cumulative_sum

_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)
_NOTHING = -1


@dataclass(frozen=True)
class WalkSettings:
    """Anchors of a higher degree are left out, and the ``top_k`` most visited are kept."""

    num_hops: int
    restart_probability: float
    max_anchor_degree: int
    top_k: int


@dataclass(frozen=True)
class WalkGraph:
    """Edges in both directions: ``forward`` is nodes x anchors, ``backward`` anchors x nodes."""

    forward: Csr
    backward: Csr

    @classmethod
    def from_edges(
        cls, edges: Csr, max_anchor_degree: int, folder: Path | None = None
    ) -> "WalkGraph":
        """Take ``edges`` (nodes x anchors) without anchors of over ``max_anchor_degree`` edges.

        The graph is kept in files in ``folder``, for :meth:`open`, or else in memory.
        """
        degrees = np.zeros(int(edges.indices.max(initial=-1)) + 1, dtype=np.int64)
        _count_edges(edges.indices, degrees)
        degrees[degrees > max_anchor_degree] = 0
        num_nodes = edges.num_rows
        num_anchors = len(degrees)
        num_edges = int(degrees.sum())
        # Of the smallest types that fit, since memory access limits the speed of a walk.
        forward = Csr.to_fill(num_nodes, num_anchors, num_edges, folder and folder / "forward")
        backward = Csr.to_fill(num_anchors, num_nodes, num_edges, folder and folder / "backward")
        np.cumsum(degrees, dtype=backward.indptr.dtype, out=backward.indptr[1:])
        _fill(*((graph.indptr, graph.indices) for graph in (edges, forward, backward)), degrees)
        return cls(forward, backward)

    @classmethod
    def open(cls, folder: Path) -> "WalkGraph":
        """Map a graph that :meth:`from_edges` has made in ``folder``."""
        return cls(Csr.open(folder / "forward"), Csr.open(folder / "backward"))


def most_visited(graph: WalkGraph, start: int, stop: int, settings: WalkSettings, seed: int) -> Csr:
    """Walk from the nodes ``start`` to ``stop`` (exclusive); return the edges to what they visit.

    Each has its ``top_k`` most visited anchors, weighted by how often it visits them. A node's walk
    depends only on the graph, the settings, the seed and the node: hop h of node v takes its four
    32-bit numbers from ``keyed_hash((seed, v), [2 h, 2 h + 1])``: restart, anchor; node, visit.
    """
    degrees = np.zeros(stop - start, dtype=np.int64)
    anchors = np.full((stop - start, settings.top_k), np.iinfo(np.int32).max, dtype=np.int32)
    counts = np.empty_like(anchors)
    _walk_all(
        tuple((edges.indptr, edges.indices) for edges in (graph.forward, graph.backward)),
        start,
        (settings.num_hops, np.uint64(settings.restart_probability * 2.0**32)),
        mix(np.array([seed]))[0],
        (degrees, anchors, counts),
    )
    kept = np.arange(settings.top_k) < degrees[:, None]
    ascending = np.argsort(anchors, axis=1)
    anchors, counts = (np.take_along_axis(a, ascending, axis=1) for a in (anchors, counts))
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return Csr(indptr, anchors[kept], cumulative_sum(counts[kept]))


def _compiled_once(function):  # type: ignore[no-untyped-def]
    """Compile ``function``, which takes seconds, and cache the result for later processes."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # neither the source's folder nor the user's cache can be written
        return njit(function)


@_compiled_once
def _count_edges(anchors, degrees):  # type: ignore[no-untyped-def]
    """Add the edges of each anchor to ``degrees``."""
    for anchor in anchors:
        degrees[anchor] += 1


@_compiled_once
def _fill(edges, forward, backward, missing):  # type: ignore[no-untyped-def]
    """Write edges in both directions; ``missing`` is how many each anchor still lacks."""
    num_edges = 0
    for node in range(len(edges[0]) - 1):
        for place in range(edges[0][node], edges[0][node + 1]):
            anchor = edges[1][place]
            if missing[anchor]:
                forward[1][num_edges] = anchor
                backward[1][backward[0][anchor + 1] - missing[anchor]] = node
                missing[anchor] -= 1
                num_edges += 1
        forward[0][node + 1] = num_edges


@_compiled_once
def _walk_all(graph, start, hops, seed, kept):  # type: ignore[no-untyped-def]
    """Walk from consecutive nodes beginning with ``start``, one for each row of ``kept``."""
    num_hops, restart = hops
    degrees, anchors, counts = kept
    numbers = np.empty(2 * num_hops, dtype=np.uint64)
    active, leaves, reached = np.empty((3, num_hops + 1), dtype=np.int64)
    visits = np.empty(num_hops, dtype=np.int32)
    table = _empty_table(num_hops)
    starts = graph[0][0]
    for row in range(len(degrees)):
        node = start + row
        if starts[node] == starts[node + 1]:
            continue
        node_seed = _mix(seed ^ np.uint64(node))
        for i in range(2 * num_hops):
            numbers[i] = _mix(np.uint64(i) ^ node_seed)
        leaves[:] = node
        num_active = _after_restart(numbers, restart, active)
        while num_active:
            _hop(graph, numbers, active[:num_active], (leaves, reached), visits)
            num_active = _going_on(numbers, restart, active[:num_active])
        num_distinct = _count(visits, table)
        degrees[row] = _keep_most(num_distinct, table, node_seed, anchors[row], counts[row])


@njit
def _hop(graph, numbers, active, places, visits):  # type: ignore[no-untyped-def]
    """Take the ``active`` hops, none of which continues another."""
    # A hop makes three memory reads, each of which depends on the one before. Done in stages, the
    # reads of different hops overlap, which is several times faster.
    forward, backward = graph
    leaves, reached = places
    for i, hop in enumerate(active):
        reached[i] = _neighbour(forward, leaves[hop], numbers[2 * hop] & _LOW_HALF)
    for i, hop in enumerate(active):
        reached[i] = _neighbour(backward, reached[i], numbers[2 * hop + 1] >> _HALF)
    for i, hop in enumerate(active):
        visits[hop] = _neighbour(forward, reached[i], numbers[2 * hop + 1] & _LOW_HALF)
        if visits[hop] != _NOTHING:  # else the next hop leaves from the start
            leaves[hop + 1] = reached[i]


@njit
def _after_restart(numbers, restart, active):  # type: ignore[no-untyped-def]
    """List the hops that leave from the start in ``active``; returns their number."""
    num_active = 0
    for hop in range(len(numbers) // 2):
        active[num_active] = hop
        num_active += hop == 0 or numbers[2 * hop] >> _HALF < restart
    return num_active


@njit
def _going_on(numbers, restart, active):  # type: ignore[no-untyped-def]
    """Replace ``active`` hops by those that continue them; returns their number."""
    num_active = 0
    for i in range(len(active)):
        hop = active[i] + 1
        if 2 * hop < len(numbers) and numbers[2 * hop] >> _HALF >= restart:
            active[num_active] = hop
            num_active += 1
    return num_active


@njit(inline="always")
def _neighbour(edges, row, number):  # type: ignore[no-untyped-def]
    """Map 32 random bits to a neighbour of ``row``, uniform up to degree / 2³²."""
    starts, columns = edges
    if row == _NOTHING:
        return _NOTHING
    first = np.int64(starts[row])
    degree = np.int64(starts[row + 1]) - first
    if degree == 0:
        return _NOTHING
    return np.int64(columns[first + np.int64(number * np.uint64(degree) >> _HALF)])


@njit
def _empty_table(num_hops):  # type: ignore[no-untyped-def]
    """Make a hash table of anchors and counts, and a list of the slots that are in use."""
    size = 2  # at most half full, it fits in the first-level cache, unlike a count for each anchor
    while size < 2 * num_hops:
        size *= 2
    return (
        np.full(size, _NOTHING, dtype=np.int32),
        np.zeros(size, dtype=np.int32),
        np.empty(num_hops, dtype=np.int64),
    )


@njit
def _count(visits, table):  # type: ignore[no-untyped-def]
    """Count the visits in an empty table; returns the number of distinct anchors."""
    keys, tally, used = table
    last = np.int64(len(keys) - 1)
    num_used = 0
    for anchor in visits:
        if anchor == _NOTHING:
            continue
        slot = np.int64(np.uint64(anchor) * _FIBONACCI >> _HALF) & last
        while keys[slot] != anchor and keys[slot] != _NOTHING:
            slot = (slot + 1) & last
        if keys[slot] == _NOTHING:
            keys[slot] = anchor
            used[num_used] = slot
            num_used += 1
        tally[slot] += 1
    return num_used


@njit
def _keep_most(num_used, table, seed, anchors, counts):  # type: ignore[no-untyped-def]
    """Empty the table into ``anchors`` and ``counts`` (top_k,), most visited first."""
    keys, tally, used = table
    num_kept = 0
    for i in range(num_used):
        anchor = keys[used[i]]
        count = tally[used[i]]
        keys[used[i]] = _NOTHING
        tally[used[i]] = 0
        place = num_kept
        while place and (
            counts[place - 1] < count
            or (counts[place - 1] == count and _comes_later(anchors[place - 1], anchor, seed))
        ):
            place -= 1
        if place == len(anchors):
            continue
        num_kept = min(num_kept + 1, len(anchors))
        for other in range(num_kept - 1, place, -1):
            anchors[other], counts[other] = anchors[other - 1], counts[other - 1]
        anchors[place], counts[place] = anchor, count
    return num_kept


@njit(inline="always")
def _comes_later(anchor, other, seed):  # type: ignore[no-untyped-def]
    # By their hashes: ties are frequent, and ids often alphabetical.
    return _mix(np.uint64(anchor) ^ seed) > _mix(np.uint64(other) ^ seed)


@njit(inline="always")
def _mix(value):  # type: ignore[no-untyped-def]
    """Mix one number as :func:`ramen_ray.data.arrays.mix` does."""
    z = value + _FIBONACCI
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
