"""After the last step, evaluate the best model and the untrained one.

A model with classifiers is evaluated by each part of its vectors and by both; validation chooses
what the run's retriever answers with.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.method.distributed import world
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.orchestration.runs.task import FinalEvaluation
from ramen_ray.orchestration.worker.setup import Setup

VALIDATION = "validation/"
NOT_VALIDATED = -1.0
SAMPLE_QUERIES = 50
SAMPLE_ADS = 5

TEST_ADS_FILE = "test_ads.npy"

PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")

Evaluate = Callable[[DualEncoder, str], tuple[dict[str, float], TopK]]


def evaluate_best(
    setup: Setup,
    untrained: DualEncoder,
    load: Callable[[Path], DualEncoder],
    evaluate: Evaluate,
) -> FinalEvaluation:
    """Evaluate the best model and the untrained one on all splits that are not trained on.

    The first worker writes the trained model's best ads of every test query into the run's folder,
    as ids (queries, k) in TEST_ADS_FILE, so that runs can be compared; those by each part of a
    model with classifiers are in ``test_ads_PART.npy``.

    Args:
        setup: the run's.
        untrained: the model that training started from, on the device to compute on.
        load: loads the model of a checkpoint, onto this device.
        evaluate: returns the metrics of a model on a split, and its best ads for each query.
    """
    config, splits, folder = setup.config, setup.data.splits[1:], setup.folder
    selection = config.training.selection_metric
    key = VALIDATION + selection
    reported = [one for one in setup.host.reported() if key in one.metrics]
    best = max(enumerate(reported), key=lambda item: (item[1].metrics[key], item[0]))[1]
    check_intact(best.folder)
    trained = load(best.folder)
    metrics = {"untrained": {split: evaluate(untrained, split)[0] for split in splits}}
    parts = PARTS if trained.classifiers is not None else PARTS[:1]
    found: dict[Part, TopK] = {}
    by_part: dict[Part, dict[str, dict[str, float]]] = {part: {} for part in parts}
    for part in parts:
        trained.part = part
        for split in splits:
            by_part[part][split], topk = evaluate(trained, split)
            if split == "test":
                found[part] = topk
    chosen = max(parts, key=lambda part: by_part[part]["validation"][selection])
    if len(parts) > 1:
        metrics |= {str(part): of_splits for part, of_splits in by_part.items()}
    metrics["trained"] = by_part[chosen]
    if world()[0] == 0:
        _save_ads(folder / TEST_ADS_FILE, found[chosen])
        if len(parts) > 1:
            for part, topk in found.items():
                _save_ads(folder / f"test_ads_{part}.npy", topk)
    sample = _sample(found[chosen], config.seed)
    return FinalEvaluation(metrics, sample, str(best.folder), best.metrics["step"], chosen)


def _save_ads(file: Path, topk: TopK) -> None:
    with whole_file(file) as aside, aside.open("wb") as opened:
        np.save(opened, topk[0])


def _sample(topk: TopK, seed: int) -> dict[str, Any]:
    ads, scores = topk
    queries = np.sort(np.random.default_rng(seed).permutation(len(ads))[:SAMPLE_QUERIES])
    return {
        "queries": queries.tolist(),
        "ads": ads[queries, :SAMPLE_ADS].tolist(),
        "scores": scores[queries, :SAMPLE_ADS].tolist(),
    }
