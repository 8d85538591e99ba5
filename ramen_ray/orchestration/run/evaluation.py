"""After the last step, evaluate the best model and the untrained one.

A model with classifiers is evaluated by each part of its vectors and by both; validation chooses
what the run's retriever answers with.
"""

from pathlib import Path

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.method.distributed import world
from ramen_ray.method.metrics.judgement import evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.orchestration.run.build import build_propensity, held_classifiers
from ramen_ray.orchestration.run.directory import TEST_ADS_FILE
from ramen_ray.orchestration.run.setup import Setup, untrained_model
from ramen_ray.orchestration.run.task import FinalEvaluation

PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")


def measure(setup: Setup, model: DualEncoder, split: str) -> tuple[dict[str, float], TopK]:
    """Evaluate a model on a split as :func:`evaluate` does, with the run's settings."""
    return evaluate(model, setup.data, split, build_propensity(setup.config), setup.use_bf16)


def evaluate_best(setup: Setup) -> FinalEvaluation:
    """Evaluate the best model and the untrained one on all splits that are not trained on.

    The first worker writes the trained model's best ads of every test query into the run's folder,
    as ids (queries, k) in TEST_ADS_FILE, so that runs can be compared; those by each part of a
    model with classifiers are in ``test_ads_PART.npy``.
    """
    config, splits, folder = setup.config, setup.data.splits[1:], setup.folder
    selection = config.training.selection_metric
    untrained = untrained_model(setup)
    best = setup.checkpoints.best()
    check_intact(best.folder)
    trained = load_model(best.folder, held_classifiers(config, setup.data)).to(setup.device)
    metrics = {"untrained": {split: measure(setup, untrained, split)[0] for split in splits}}
    parts = PARTS if trained.classifiers is not None else PARTS[:1]
    found: dict[Part, TopK] = {}
    by_part: dict[Part, dict[str, dict[str, float]]] = {part: {} for part in parts}
    for part in parts:
        trained.part = part
        for split in splits:
            by_part[part][split], topk = measure(setup, trained, split)
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
    return FinalEvaluation(metrics, str(best.folder), best.step, chosen)


def _save_ads(file: Path, topk: TopK) -> None:
    with whole_file(file) as aside, aside.open("wb") as opened:
        np.save(opened, topk[0])
