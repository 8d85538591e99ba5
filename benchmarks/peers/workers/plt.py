"""napkinXC's probabilistic label trees, searched exactly, which is their default."""

from pathlib import Path
from typing import Any

from napkinxc.models import PLT
from scipy.sparse import csr_matrix

from benchmarks.peers.workers.serving import Predict, serve


def train(
    features: csr_matrix,
    labels: csr_matrix,
    settings: dict[str, Any],
    seed: int,
    threads: int,
    folder: Path,
) -> Predict:
    """Train the trees; they lie in the folder and are loaded from it."""
    model = PLT(str(folder), seed=seed, threads=threads, **settings)
    model.fit(features, [row.indices.tolist() for row in labels])
    model.load()

    def predict(rows: csr_matrix, k: int) -> list[list[int]]:
        answers: list[list[int]] = model.predict(rows, top_k=k)
        return answers

    return predict


if __name__ == "__main__":
    serve(train)
