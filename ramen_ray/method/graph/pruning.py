"""Pruning: keep the edges whose texts the encoder itself finds similar (RAMEN, appendix A)."""

from dataclasses import dataclass

import numpy as np

from ramen_ray.data.prepared.csr import Csr, cumulative_sum
from ramen_ray.method.model.embeddings import TextEmbeddings

EDGES_PER_BATCH = 16_384


@dataclass(frozen=True)
class Pruned:
    """One side of a graph after pruning.

    Attributes:
        edges: nodes x anchors, the kept edges with their weights.
        share_kept: share of the edges that were kept; 1 if there were no edges.
        num_left_bare: nodes that lost all of their edges, and so add nothing to the loss.
    """

    edges: Csr
    share_kept: float
    num_left_bare: int


def prune(
    edges: Csr, nodes: TextEmbeddings, anchors: TextEmbeddings, prune_threshold: float
) -> Pruned:
    """Drop the edges whose texts' cosine is at most ``prune_threshold``.

    Args:
        edges: nodes x anchors.
        nodes: embeddings of the nodes' texts.
        anchors: embeddings of the anchors' texts.
        prune_threshold: in [-1, 1]; the paper's is 0.
    """
    num_edges = len(edges.indices)
    keep = np.empty(num_edges, dtype=bool)
    for start in range(0, num_edges, EDGES_PER_BATCH):
        batch = slice(start, min(start + EDGES_PER_BATCH, num_edges))
        rows = np.searchsorted(edges.indptr, np.arange(start, batch.stop), side="right") - 1
        node_ED, anchor_ED = nodes.take(rows), anchors.take(edges.indices[batch])
        keep[batch] = np.einsum("ed,ed->e", node_ED, anchor_ED) > prune_threshold
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    weights = edges.cumulative_weights
    pruned = Csr(
        kept_before[edges.indptr],
        edges.indices[keep],
        None if weights is None else cumulative_sum(np.diff(weights)[keep]),
    )
    left_bare = (np.diff(edges.indptr) > 0) & (np.diff(pruned.indptr) == 0)
    return Pruned(pruned, float(keep.mean()) if num_edges else 1.0, int(left_bare.sum()))
