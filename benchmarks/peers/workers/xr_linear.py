"""PECOS XR-Linear, as its README trains and loads it: PIFA clusters, prediction in C++."""

from pathlib import Path
from typing import Any

import numpy as np
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
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
    """Cluster the labels, train a linear model of each level, and load it for prediction."""
    labels = labels.astype(np.float32)
    embedded = LabelEmbeddingFactory.create(labels, features, method="pifa")
    chain = Indexer.gen(
        embedded,
        indexer_type="hierarchicalkmeans",
        max_leaf_size=settings["max_leaf_size"],
        seed=seed,
        threads=threads,
    )
    model = XLinearModel.train(
        features,
        labels.tocsc(),
        C=chain,
        Cp=settings["cp"],
        threshold=settings["threshold"],
        negative_sampling_scheme=settings["negatives"],
        threads=threads,
    )
    model.save(str(folder))
    loaded = XLinearModel.load(str(folder), is_predict_only=True)
    beam = settings["beam"]

    def predict(rows: csr_matrix, k: int) -> list[list[int]]:
        found = loaded.predict(rows, beam_size=beam, only_topk=k, threads=threads)
        parts = zip(
            np.split(found.indices, found.indptr[1:-1]),
            np.split(found.data, found.indptr[1:-1]),
            strict=True,
        )
        return [row[np.argsort(-scores, kind="stable")].tolist() for row, scores in parts]

    return predict


if __name__ == "__main__":
    serve(train)
