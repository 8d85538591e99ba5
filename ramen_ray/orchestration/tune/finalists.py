"""The last trainings of a sweep: its best trials again with further seeds, beside the preset's own.

Further seeds have not chosen the finalists.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import (
    Identity,
    RunDirectory,
    RunError,
    finished_run,
)
from ramen_ray.orchestration.tune.choice import Choice, choose, half_of_validation
from ramen_ray.orchestration.tune.settings import FURTHER_SEEDS
from ramen_ray.orchestration.tune.trial_log import TrialLog, failures
from ramen_ray.orchestration.tune.trials import ERRORS, train_all
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

OWN = "own"  # the name of the configuration's own settings among the finalists
NUM_SIMULATED = 20_000


def train_finalists(
    config: RunConfig,
    candidates: Mapping[str, Mapping[str, Any]],
    directory: RunDirectory,
    made_from: Identity,
    run: Run,
) -> dict[str, list[RunConfig]]:
    """Train candidates, which are changes of ``config``, and its own settings with further seeds.

    Returns the runs of each. Runs that are finished are kept; a RunError if one fails.
    """
    runs = {
        name: [
            overlay(config, {**changes, "seed": seed, "name": _name(directory, name, seed)})
            for seed in range(config.seed + 1, config.seed + 1 + FURTHER_SEEDS)
        ]
        for name, changes in {**candidates, OWN: {}}.items()
    }
    missing = {
        str(again.name): again
        for of_candidate in runs.values()
        for again in of_candidate
        if finished_run(again, made_from) is None
    }
    log = TrialLog(
        output=config.output,
        epochs=config.training.epochs,
        decides=(config.training.selection_metric,),
        errors=directory.path / ERRORS,
    )
    if missing:
        logger.info(
            "%d trainings decide: the best %d and the preset's own settings, with %d further seeds",
            len(missing),
            len(candidates),
            FURTHER_SEEDS,
        )
    if errors := train_all(missing, run, directory.path, made_from, log):
        raise RunError(failures(errors, len(missing)))
    return runs


def _name(directory: RunDirectory, candidate: str, seed: int) -> str:
    return joined_name(directory.name, candidate, f"seed{seed}")


def choose_finalist(
    runs: Mapping[str, list[RunConfig]],
    trials: Sequence[TrialRecord],
    data: Prepared,
    dataset: Dataset,
) -> Choice:
    """Choose among the ``runs`` of finalists and of the preset's own settings, by their metric.

    ``trials`` are all that the finalists were the best of.
    """
    first = runs[OWN][0]
    metric = first.training.selection_metric
    scores = {
        name: [
            {metric: scores_of_run(_folder(again), again, data, "validation")[metric]}
            for again in of_finalist
        ]
        for name, of_finalist in runs.items()
    }
    choice = choose(scores, half_of_validation(dataset, first.seed), metric, OWN)
    values = [100 * trial.value for trial in trials if trial.value is not None]
    luck = 100 * choice.noise * expected_best(len(values))
    lead = max(values) - float(np.mean(values))
    choice.sentences.append(
        f"the best of {len(values)} trials was {lead:.2f} above their mean; of as many that differ "
        f"by nothing but seeds it would be {luck:.2f}"
    )
    return choice


def expected_best(count: int) -> float:
    """Return the mean of the highest of ``count`` standard normal draws."""
    draw = np.random.default_rng(0)
    return float(draw.standard_normal((NUM_SIMULATED, count)).max(1).mean())


def _folder(run: RunConfig) -> Path:
    return RunDirectory.of(run.output, str(run.name)).path
