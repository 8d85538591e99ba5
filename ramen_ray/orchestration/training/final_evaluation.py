"""After the last step, evaluate the best model and the untrained one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray.train

from ramen_ray.config import RunConfig
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.method.distributed import world
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.orchestration.training.task import FinalEvaluation

VALIDATION = "validation/"
SCORE = "score"  # the selection metric; Ray Train keeps checkpoints by it
NOT_VALIDATED = -1.0
SAMPLE_QUERIES = 50
SAMPLE_ADS = 5

TEST_ADS_FILE = "test_ads.npy"

Evaluate = Callable[[DualEncoder, str], tuple[dict[str, float], TopK]]


def evaluate_best(
    config: RunConfig,
    splits: list[str],
    untrained: DualEncoder,
    evaluate: Evaluate,
    folder: Path,
) -> FinalEvaluation:
    """Evaluate the best model and the untrained one on ``splits``, one of which is ``test``.

    Args:
        config: the run's; it names the metric that selects the best model.
        splits: the splits to evaluate on.
        untrained: the model that training started from, on the device to compute on.
        evaluate: returns the metrics of a model on a split, and its best ads for each query.
        folder: where the first worker writes the trained model's best ads of every test query, as
            ids (queries, k) in TEST_ADS_FILE, so that runs can be compared.
    """
    key = VALIDATION + config.training.selection_metric
    reported = [r for r in ray.train.get_all_reported_checkpoints() if key in r.metrics]
    best = max(enumerate(reported), key=lambda item: (item[1].metrics[key], item[0]))[1]
    with best.checkpoint.as_directory() as checkpoint:
        check_intact(Path(checkpoint))
        trained = load_model(Path(checkpoint)).to(untrained.device)
    models = {"untrained": untrained, "trained": trained}
    metrics: dict[str, dict[str, dict[str, float]]] = {row: {} for row in models}
    for row, model in models.items():
        for split in splits:
            metrics[row][split], found = evaluate(model, split)
            if split == "test":
                topk = found
    if world()[0] == 0:
        with whole_file(folder / TEST_ADS_FILE) as aside, aside.open("wb") as file:
            np.save(file, topk[0])
    sample = _sample(topk, config.seed)
    return FinalEvaluation(metrics, sample, best.checkpoint.path, best.metrics["step"])


def _sample(topk: TopK, seed: int) -> dict[str, Any]:
    ads, scores = topk
    queries = np.sort(np.random.default_rng(seed).permutation(len(ads))[:SAMPLE_QUERIES])
    return {
        "queries": queries.tolist(),
        "ads": ads[queries, :SAMPLE_ADS].tolist(),
        "scores": scores[queries, :SAMPLE_ADS].tolist(),
    }
