"""Programs that run in the rivals' own environments; they know nothing of this project.

Each is asked by pickled plain values over its pipes: it trains once, then answers until the other
side closes the pipe.

    python -m benchmarks.peers.workers {forest,plt,xr_linear}
"""

import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, load_npz, save_npz

Predict = Callable[[csr_matrix, int], Sequence[Sequence[int]]]
"""Gives the best k labels of each row of features."""


class Task(NamedTuple):
    """What is to be trained: rows x features, rows x labels; ``folder`` gets the model."""

    features: csr_matrix
    labels: csr_matrix
    settings: dict[str, Any]
    seed: int
    threads: int
    folder: Path


def forest(task: Task) -> Predict:
    """Train omikuji's label trees: Parabel by its defaults, Bonsai by its README's options.

    It takes no seed, and differs from run to run.
    """
    import omikuji

    parameters = omikuji.Model.default_hyper_param()
    for name, value in task.settings.items():
        if name != "beam":
            setattr(parameters, name, value)
    file = task.folder.with_suffix(".txt")
    with file.open("w") as stream:
        shape = (*task.features.shape, task.labels.shape[1])
        stream.write(f"{' '.join(map(str, shape))}\n")
        for row, of_row in zip(task.features, task.labels, strict=True):
            found = " ".join(f"{c}:{v:.6f}" for c, v in _pairs(row))
            stream.write(f"{','.join(map(str, of_row.indices))} {found}\n")
    model = omikuji.Model.train_on_data(str(file), parameters, n_threads=task.threads)
    file.unlink()
    model.save(str(task.folder))
    model.init_prediction_thread_pool(task.threads)
    beam = task.settings["beam"]
    return lambda rows, k: [
        [label for label, _ in model.predict(_pairs(row), beam_size=beam, top_k=k)] for row in rows
    ]


def _pairs(row: csr_matrix) -> list[tuple[int, float]]:
    return sorted(zip(row.indices.tolist(), row.data.tolist(), strict=True))


def plt(task: Task) -> Predict:
    """Train napkinXC's probabilistic label trees, searched exactly, which is their default."""
    from napkinxc.models import PLT

    model = PLT(str(task.folder), seed=task.seed, threads=task.threads, **task.settings)
    model.fit(task.features, [row.indices.tolist() for row in task.labels])
    model.load()
    return lambda rows, k: model.predict(rows, top_k=k)


def xr_linear(task: Task) -> Predict:
    """Train PECOS XR-Linear, as its README does: PIFA clusters, prediction in C++."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    settings, threads = task.settings, task.threads
    labels = task.labels.astype(np.float32)
    chain = Indexer.gen(
        LabelEmbeddingFactory.create(labels, task.features, method="pifa"),
        indexer_type="hierarchicalkmeans",
        max_leaf_size=settings["max_leaf_size"],
        seed=task.seed,
        threads=threads,
    )
    model = XLinearModel.train(
        task.features,
        labels.tocsc(),
        C=chain,
        Cp=settings["cp"],
        threshold=settings["threshold"],
        negative_sampling_scheme=settings["negatives"],
        threads=threads,
    )
    model.save(str(task.folder))
    loaded = XLinearModel.load(str(task.folder), is_predict_only=True)

    def predict(rows: csr_matrix, k: int) -> list[list[int]]:
        found = loaded.predict(rows, beam_size=settings["beam"], only_topk=k, threads=threads)
        parts = (np.split(values, found.indptr[1:-1]) for values in (found.indices, found.data))
        return [
            row[np.argsort(-scores, kind="stable")].tolist()
            for row, scores in zip(*parts, strict=True)
        ]

    return predict


def pack(matrix: Any) -> bytes:
    """Return a sparse matrix in a form that all versions of numpy and scipy read."""
    stream, plain = io.BytesIO(), csr_matrix(matrix, dtype=np.float32)
    plain.sort_indices()
    save_npz(stream, plain, compressed=False)
    return stream.getvalue()


def unpack(packed: bytes) -> csr_matrix:
    return csr_matrix(load_npz(io.BytesIO(packed)))


def serve(train: Callable[[Task], Predict]) -> None:
    """Train once, then answer until the other side closes the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the packages print goes beside the answers
    features, labels, *rest = pickle.load(sys.stdin.buffer)
    predict = train(Task(unpack(features), unpack(labels), *rest))
    _send(answers, None)
    while True:
        try:
            rows, k = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, [[int(label) for label in row] for row in predict(unpack(rows), k)])


def _send(answers: Any, value: Any) -> None:
    pickle.dump(value, answers)
    answers.flush()


if __name__ == "__main__":
    serve({"forest": forest, "plt": plt, "xr_linear": xr_linear}[sys.argv[1]])
