"""Pruning: keep the edges whose texts the encoder itself finds similar (RAMEN, appendix A)."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ramen_ray.data.prepared.csr import Csr, cumulative_sum, write_csr
from ramen_ray.method.model.embeddings import TextEmbeddings

EDGES_PER_BATCH = 16_384


@dataclass(frozen=True)
class Pruned:
    """One side of a graph after pruning.

    Attributes:
        edges: nodes x anchors, the kept edges with their weights, mapped into memory.
        share_kept: share of the edges that were kept; 1 if there were no edges.
        num_left_bare: nodes that lost all of their edges, and so add nothing to the loss.
    """

    edges: Csr
    share_kept: float
    num_left_bare: int


def prune(
    edges: Csr,
    nodes: TextEmbeddings,
    anchors: TextEmbeddings,
    prune_threshold: float,
    folder: Path,
) -> Pruned:
    """Drop the edges whose texts' cosine is at most ``prune_threshold``, some nodes at a time.

    Args:
        edges: nodes x anchors.
        nodes: embeddings of the nodes' texts.
        anchors: embeddings of the anchors' texts.
        prune_threshold: in [-1, 1]; the paper's is 0.
        folder: where the kept edges are written.
    """
    num_edges = len(edges.indices)
    cuts = np.searchsorted(edges.indptr, np.arange(EDGES_PER_BATCH, num_edges, EDGES_PER_BATCH))
    write_csr(
        folder,
        (
            _prune_rows(edges, rows, nodes, anchors, prune_threshold)
            for rows in pairwise(np.unique([0, *cuts, edges.num_rows]))
        ),
    )
    kept = Csr.open(folder)
    left_bare = (np.diff(edges.indptr) > 0) & (np.diff(kept.indptr) == 0)
    share_kept = len(kept.indices) / num_edges if num_edges else 1.0
    return Pruned(kept, share_kept, int(left_bare.sum()))


def _prune_rows(
    edges: Csr,
    rows: tuple[int, int],
    nodes: TextEmbeddings,
    anchors: TextEmbeddings,
    prune_threshold: float,
) -> Csr:
    indptr = edges.indptr[rows[0] : rows[1] + 1]
    of_edges = slice(indptr[0], indptr[-1])
    ends, weights = edges.indices[of_edges], edges.cumulative_weights
    node_ED = nodes.take(np.repeat(np.arange(*rows), np.diff(indptr)))
    keep = np.einsum("ed,ed->e", node_ED, anchors.take(ends)) > prune_threshold
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    if weights is not None:
        weights = cumulative_sum(np.diff(weights[of_edges.start : of_edges.stop + 1])[keep])
    return Csr(kept_before[indptr - indptr[0]], ends[keep], weights)
