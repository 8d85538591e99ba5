"""Omikuji's forests of label trees: Parabel by its defaults, Bonsai by its README's options.

It takes no seed, and differs from run to run.
"""

from pathlib import Path
from typing import Any

import omikuji
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
    """Write the file that omikuji reads, train, and save the model."""
    options = {name: value for name, value in settings.items() if name != "beam"}
    parameters = omikuji.Model.default_hyper_param()
    for name, value in options.items():
        setattr(parameters, name, value)
    file = folder.with_suffix(".txt")
    with file.open("w") as stream:
        stream.write(f"{features.shape[0]} {features.shape[1]} {labels.shape[1]}\n")
        for row, of_row in zip(features, labels, strict=True):
            found = " ".join(f"{c}:{v:.6f}" for c, v in _pairs(row))
            stream.write(f"{','.join(map(str, of_row.indices))} {found}\n")
    model = omikuji.Model.train_on_data(str(file), parameters, n_threads=threads)
    file.unlink()
    model.save(str(folder))
    model.init_prediction_thread_pool(threads)

    def predict(rows: csr_matrix, k: int) -> list[list[int]]:
        beam = settings["beam"]
        return [
            [label for label, _ in model.predict(_pairs(row), beam_size=beam, top_k=k)]
            for row in rows
        ]

    return predict


def _pairs(row: csr_matrix) -> list[tuple[int, float]]:
    return sorted(zip(row.indices.tolist(), row.data.tolist(), strict=True))


if __name__ == "__main__":
    serve(train)
