"""Pruning: keep the edges whose texts the encoder itself finds similar (RAMEN, appendix A)."""

from pathlib import Path

import numpy as np

from ramen_ray.data.prepared.csr import Csr, cumulative_sum, row_batches, scaled_by_row, write_csr
from ramen_ray.method.model.dual_encoder import TextEmbeddings

EDGES_PER_BATCH = 16_384


def prune(
    edges: Csr,
    nodes: TextEmbeddings,
    anchors: TextEmbeddings,
    prune_threshold: float,
    folder: Path,
) -> dict[str, float]:
    """Write into ``folder`` the edges (nodes x anchors) whose cosine is above the threshold.

    Returns the ``share_kept`` of the edges, 1 if there were none, and the number of
    ``nodes_left_bare``, which lost all of theirs, and so add nothing to the loss.
    """
    num_edges = len(edges.indices)
    batches = row_batches(edges.indptr, EDGES_PER_BATCH)
    pruned = (_prune_rows(edges, rows, nodes, anchors, prune_threshold) for rows in batches)
    write_csr(folder, pruned)
    kept = Csr.open(folder)
    left_bare = (np.diff(edges.indptr) > 0) & (np.diff(kept.indptr) == 0)
    share_kept = len(kept.indices) / num_edges if num_edges else 1.0
    return {"share_kept": share_kept, "nodes_left_bare": int(left_bare.sum())}


def _prune_rows(
    edges: Csr,
    rows: tuple[int, int],
    nodes: TextEmbeddings,
    anchors: TextEmbeddings,
    prune_threshold: float,
) -> Csr:
    indptr = edges.indptr[rows[0] : rows[1] + 1]
    of_edges = slice(indptr[0], indptr[-1])
    ends = edges.indices[of_edges]
    node_ED = nodes.take(np.repeat(np.arange(*rows), np.diff(indptr)))
    keep = np.einsum("ed,ed->e", node_ED, anchors.take(ends)) > prune_threshold
    kept = np.concatenate([[0], np.cumsum(keep)])[indptr - indptr[0]]
    if edges.cumulative_weights is None:
        return Csr(kept, ends[keep])
    weights = edges.weights(indptr[0] + np.flatnonzero(keep))
    return Csr(kept, ends[keep], cumulative_sum(scaled_by_row(weights, kept)))
