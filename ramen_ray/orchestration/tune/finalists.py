"""Candidates trained with several seeds, in sweeps, ablations and searches, and the choice."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.identity import finished_run
from ramen_ray.orchestration.tune.choice import Choice, choose, half_of_validation
from ramen_ray.orchestration.tune.experiment import Experiment
from ramen_ray.orchestration.tune.settings import FURTHER_SEEDS
from ramen_ray.orchestration.tune.trial_log import TrialLog
from ramen_ray.orchestration.tune.trials import train_all

logger = logging.getLogger(__name__)

Repeated = Mapping[str, Sequence[RunConfig]]
"""The runs of each candidate, with the same seeds."""


def further_seeds(seed: int) -> range:
    """Return the seeds that finalists are trained again with."""
    return range(seed + 1, seed + 1 + FURTHER_SEEDS)


def with_seeds(
    experiment: Experiment, candidates: Mapping[str, RunConfig], seeds: Iterable[int]
) -> dict[str, list[RunConfig]]:
    """Return runs of candidates, by name, with each of the seeds."""
    return {
        name: [experiment.named(config, f"{name}-seed{seed}", seed=seed) for seed in seeds]
        for name, config in candidates.items()
    }


def train_missing(experiment: Experiment, runs: Repeated) -> None:
    """Train the runs that are not finished; a RunError if some fail, after the others.

    Raises a RunError, too, if a finished one has other settings or is made from something else.
    """
    missing = {
        str(run.name): run
        for of_candidate in runs.values()
        for run in of_candidate
        if finished_run(replace(experiment.inputs, config=run)) is None
    }
    if not missing:
        return
    logger.info("%d trainings, after which all seeds decide", len(missing))
    log = TrialLog(experiment, [experiment.inputs.config.training.selection_metric])
    if failed := train_all(experiment, missing, log):
        raise RunError(failed)


def choose_trained(experiment: Experiment, runs: Repeated, data: Prepared, default: str) -> Choice:
    """Choose among candidates, whose runs are finished, by their selection metric on validation."""
    config = experiment.inputs.config
    metric = config.training.selection_metric
    scores = {
        name: [
            {metric: scores_of_run(directory_of(run).path, run, data, "validation")[metric]}
            for run in of_candidate
        ]
        for name, of_candidate in runs.items()
    }
    seed = runs[default][0].seed
    return choose(scores, half_of_validation(experiment.inputs.dataset, seed), metric, default)


def directory_of(run: RunConfig) -> RunDirectory:
    """Return the folder of a run that has a name."""
    return RunDirectory.of(run.output, str(run.name))
