"""What pruning keeps, found by a plain loop."""

import numpy as np
import pytest
from support import rows_of, shares_of

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


def assert_same(found: Csr, expected: list[list[tuple[int, float]]]) -> None:
    """Compare pruned edges with what :func:`kept_by_a_loop` keeps; weights within their row."""
    assert rows_of(found) == [[anchor for anchor, _ in row] for row in expected]
    for shares, row in zip(shares_of(found), expected, strict=True):
        total = sum(weight for _, weight in row)
        assert shares == pytest.approx([weight / total for _, weight in row])


def half(vectors: np.ndarray) -> np.ndarray:
    """Round embeddings as they are on disk."""
    return vectors.astype(np.float16).astype(np.float32)
