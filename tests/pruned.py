"""What pruning keeps, found by a plain loop."""

import numpy as np
import pytest
from support import rows_of

from ramen_ray.data.prepared.csr import Csr


def kept_by_a_loop(
    edges: Csr, nodes: np.ndarray, anchors: np.ndarray, threshold: float
) -> list[list[tuple[int, float]]]:
    """Return each node's kept anchors with their weights, by a plain loop."""
    kept = []
    for node, (start, stop) in enumerate(zip(edges.indptr, edges.indptr[1:], strict=False)):
        row = []
        for entry in range(start, stop):
            anchor = edges.indices[entry]
            weights = edges.cumulative_weights
            weight = 1.0 if weights is None else weights[entry + 1] - weights[entry]
            if float(nodes[node] @ anchors[anchor]) > threshold:
                row.append((int(anchor), float(weight)))
        kept.append(row)
    return kept


def _entries(edges: Csr) -> list[list[tuple[int, float]]]:
    total = edges.cumulative_weights
    weights = iter(np.ones(len(edges.indices)) if total is None else np.diff(total))
    return [[(anchor, next(weights)) for anchor in row] for row in rows_of(edges)]


def assert_same(found: Csr, expected: list[list[tuple[int, float]]]) -> None:
    """Compare pruned edges with what :func:`kept_by_a_loop` keeps."""
    for found_row, row in zip(_entries(found), expected, strict=True):
        assert [anchor for anchor, _ in found_row] == [anchor for anchor, _ in row]
        assert [w for _, w in found_row] == pytest.approx([w for _, w in row])


def half(vectors: np.ndarray) -> np.ndarray:
    """Round embeddings as they are on disk."""
    return vectors.astype(np.float16).astype(np.float32)
