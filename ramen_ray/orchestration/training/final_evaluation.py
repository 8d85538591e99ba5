"""What a worker does after the last step: measure the best checkpoint beside the untrained one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch

from ramen_ray.config import RunConfig
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.method.model.encoder import Encoder, load_encoder
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.training.checkpoints import ENCODER_FOLDER
from ramen_ray.method.training.distributed import world

VALIDATION = "validation/"
SCORE = "score"  # the selection metric, by which Ray Train tells which checkpoints to keep
NOT_VALIDATED = -1.0
SAMPLE_QUERIES = 50
SAMPLE_ADS = 5

TEST_ADS_FILE = "test_ads.npy"

Evaluate = Callable[[Encoder, str], tuple[dict[str, float], TopK]]


def evaluate_best(
    config: RunConfig,
    splits: list[str],
    untrained: Encoder,
    evaluate: Evaluate,
    device: torch.device,
    folder: Path,
) -> dict[str, Any]:
    """Measure the best encoder and the untrained one on ``splits``, of which one is ``test``.

    Args:
        config: the run's; names the metric that decides.
        splits: the splits to measure.
        untrained: the encoder that training started from.
        evaluate: gives the metrics of an encoder on a split, and its best ads for each query.
        device: where the encoders compute.
        folder: where the first worker leaves the trained encoder's best ads of every test query, as
            ids (queries, k) in TEST_ADS_FILE, for comparisons of runs.

    Returns:
        ``metrics`` by row (untrained, trained) and split, ``sample`` predictions for test queries,
        the ``best_checkpoint``'s path and the ``best_step``.
    """
    key = VALIDATION + config.training.selection_metric
    reported = [r for r in ray.train.get_all_reported_checkpoints() if key in r.metrics]
    best = max(enumerate(reported), key=lambda item: (item[1].metrics[key], item[0]))[1]
    with best.checkpoint.as_directory() as checkpoint:
        trained = load_encoder(Path(checkpoint) / ENCODER_FOLDER)
    rows = {"untrained": untrained.to(device), "trained": trained.to(device)}
    metrics: dict[str, dict[str, dict[str, float]]] = {row: {} for row in rows}
    for row, encoder in rows.items():
        for split in splits:
            metrics[row][split], found = evaluate(encoder, split)
            if split == "test":
                topk = found
    if world()[0] == 0:
        with whole_file(folder / TEST_ADS_FILE) as aside, aside.open("wb") as file:
            np.save(file, topk[0])
    return {
        "metrics": metrics,
        "sample": _sample(topk, config.seed),
        "best_checkpoint": best.checkpoint.path,
        "best_step": best.metrics["step"],
    }


def _sample(topk: TopK, seed: int) -> dict[str, Any]:
    ads, scores = topk
    queries = np.sort(np.random.default_rng(seed).permutation(len(ads))[:SAMPLE_QUERIES])
    return {
        "queries": queries.tolist(),
        "ads": ads[queries, :SAMPLE_ADS].tolist(),
        "scores": scores[queries, :SAMPLE_ADS].tolist(),
    }
