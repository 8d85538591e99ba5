"""Candidates trained with several seeds, in sweeps, ablations and searches, and the choice."""

from collections.abc import Iterable, Mapping, Sequence

from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import Identity, RunDirectory, RunError, finished_run
from ramen_ray.orchestration.tune.choice import Choice, choose, half_of_validation
from ramen_ray.orchestration.tune.settings import FURTHER_SEEDS
from ramen_ray.orchestration.tune.trial_log import TrialLog
from ramen_ray.orchestration.tune.trials import ERRORS, train_all
from ramen_ray.tracking.runs import Run

Repeated = Mapping[str, Sequence[RunConfig]]
"""The runs of each candidate, with the same seeds."""


def further_seeds(seed: int) -> range:
    """Return the seeds that finalists are trained again with."""
    return range(seed + 1, seed + 1 + FURTHER_SEEDS)


def with_seeds(
    candidates: Mapping[str, RunConfig], seeds: Iterable[int], of_all: str
) -> dict[str, list[RunConfig]]:
    """Return runs of candidates with each of the seeds; their names begin with that ``of_all``."""
    return {
        name: [
            overlay(config, {"seed": seed, "name": joined_name(of_all, name, f"seed{seed}")})
            for seed in seeds
        ]
        for name, config in candidates.items()
    }


def unfinished(runs: Repeated, made_from: Identity) -> dict[str, RunConfig]:
    """Return the runs that are not finished, by name; a RunError if one is of something else."""
    return {
        str(run.name): run
        for of_candidate in runs.values()
        for run in of_candidate
        if finished_run(run, made_from) is None
    }


def train_missing(
    missing: Mapping[str, RunConfig], made_from: Identity, directory: RunDirectory, parent: Run
) -> None:
    """Train runs, by name, as parts of a run in MLflow; a RunError if some fail, after others."""
    if not missing:
        return
    config = next(iter(missing.values()))
    log = TrialLog(
        output=config.output,
        epochs=config.training.epochs,
        decides=(config.training.selection_metric,),
        errors=directory.path / ERRORS,
    )
    if failed := train_all(missing, parent, directory.path, made_from, log):
        raise RunError(failed)


def choose_trained(runs: Repeated, data: Prepared, dataset: Dataset, default: str) -> Choice:
    """Choose among candidates, whose runs are finished, by their selection metric on validation."""
    first = runs[default][0]
    metric = first.training.selection_metric
    scores = {
        name: [
            {metric: scores_of_run(directory_of(run).path, run, data, "validation")[metric]}
            for run in of_candidate
        ]
        for name, of_candidate in runs.items()
    }
    return choose(scores, half_of_validation(dataset, first.seed), metric, default)


def directory_of(run: RunConfig) -> RunDirectory:
    """Return the folder of a run that has a name."""
    return RunDirectory.of(run.output, str(run.name))
