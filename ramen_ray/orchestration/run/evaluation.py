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
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.orchestration.run.build import held_classifiers
from ramen_ray.orchestration.run.directory import TEST_ADS_FILE, VALIDATION_ADS_FILE
from ramen_ray.orchestration.run.setup import RunSetup
from ramen_ray.orchestration.run.task import FinalEvaluation

PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")


def evaluate_best(setup: RunSetup) -> FinalEvaluation:
    """Evaluate the best model and the untrained one on all splits that are not trained on.

    The first worker writes the trained model's best ads of every test and validation query into the
    run's folder, as ids (queries, k) in TEST_ADS_FILE and VALIDATION_ADS_FILE, so that runs can be
    compared; test ads by each part of a model with classifiers are in ``test_ads_PART.npy``.
    """
    config, splits, folder = setup.config, setup.data.splits[1:], setup.folder
    selection = config.training.selection_metric
    untrained = setup.new_model()
    best = setup.checkpoints.best()
    check_intact(best.folder)
    trained = load_model(best.folder, held_classifiers(config, setup.data)).to(setup.process.device)
    metrics = {"untrained": {split: setup.measure(untrained, split)[0] for split in splits}}
    parts = PARTS if trained.classifiers is not None else PARTS[:1]
    found: dict[Part, dict[str, TopK]] = {part: {} for part in parts}
    by_part: dict[Part, dict[str, dict[str, float]]] = {part: {} for part in parts}
    for part in parts:
        trained.part = part
        for split in splits:
            by_part[part][split], found[part][split] = setup.measure(trained, split)
    chosen = max(parts, key=lambda part: by_part[part]["validation"][selection])
    if len(parts) > 1:
        metrics |= {str(part): of_splits for part, of_splits in by_part.items()}
    metrics["trained"] = by_part[chosen]
    if world()[0] == 0:
        _save_ads(folder / TEST_ADS_FILE, found[chosen]["test"])
        _save_ads(folder / VALIDATION_ADS_FILE, found[chosen]["validation"])
        if len(parts) > 1:
            for part, of_splits in found.items():
                _save_ads(folder / f"test_ads_{part}.npy", of_splits["test"])
    return FinalEvaluation(metrics, str(best.folder), best.step, chosen)


def _save_ads(file: Path, topk: TopK) -> None:
    with whole_file(file) as aside, aside.open("wb") as opened:
        np.save(opened, topk[0])
