"""The end of a sweep: its best trials again with further seeds, beside the preset's own settings.

The best of many trials looks better than it is. Further seeds have not chosen the finalists, so
their mean is what to expect of one; it is a little high of the best of several.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.comparison import (
    Difference,
    in_points,
    paired_differences_over_seeds,
)
from ramen_ray.method.metrics.ranking import PerQuery, ratio
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import (
    Identity,
    RunDirectory,
    RunError,
    finished_run,
)
from ramen_ray.orchestration.tune.trial_log import TrialLog, failures
from ramen_ray.orchestration.tune.trials import ERRORS, train_all
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

OWN = "own"  # the name of the configuration's own settings among the finalists
FURTHER_SEEDS = 2
NUM_SIMULATED = 20_000


@dataclass(frozen=True)
class Final:
    """Which finalist to take, and what is to be expected of it."""

    chosen: str
    changes: Mapping[str, Any]  # of the configuration
    run: str  # the name of a run of it, with a further seed
    figure: float  # the mean of its metric over the further seeds
    noise: float  # standard deviation of the metric over seeds
    sentences: list[str]


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


def decide(
    runs: Mapping[str, list[RunConfig]],
    candidates: Mapping[str, Mapping[str, Any]],
    trials: Sequence[TrialRecord],
    data: Prepared,
    metric: str,
) -> Final:
    """Choose among the ``runs`` of ``candidates`` and of the preset's own settings.

    ``trials`` are all that the candidates were the best of.
    """
    scores = {
        name: [
            {metric: scores_of_run(_folder(again), again, data, "validation")[metric]}
            for again in of_candidate
        ]
        for name, of_candidate in runs.items()
    }
    chosen, noise, sentences = choose(scores, metric)
    values = [100 * trial.value for trial in trials if trial.value is not None]
    luck = 100 * noise * expected_best(len(values))
    lead = max(values) - float(np.mean(values))
    sentences.append(
        f"the best of {len(values)} trials was {lead:.2f} above their mean; of as many that differ "
        f"by nothing but seeds it would be {luck:.2f}"
    )
    figure = _means(scores, metric)[chosen]
    changes = candidates.get(chosen, {})
    return Final(chosen, changes, str(runs[chosen][0].name), figure, noise, sentences)


def choose(
    scores: Mapping[str, Sequence[Mapping[str, PerQuery]]], metric: str
) -> tuple[str, float, list[str]]:
    """Return the best by the mean over runs, or OWN if it is level with that, the noise, and why.

    ``scores`` are by candidate, then by run of the same seeds; those of OWN must be among them.
    """
    means = _means(scores, metric)
    best_first = sorted(means, key=lambda name: -means[name])
    best = next(name for name in best_first if name != OWN)
    gain = _gain(scores, best, OWN, metric)
    is_better = gain.low > 0
    chosen = best if is_better else OWN
    spread = [np.var([ratio(run[metric]) for run in of], ddof=1) for of in scores.values()]
    sentences = [
        f"{chosen}: validation {metric} {100 * means[chosen]:.2f} is the mean over "
        f"{len(scores[chosen])} further seeds, which have not chosen the finalists",
        f"{best} over the preset's own settings: {in_points(gain)}"
        + ("" if is_better else "; level with the preset: take the preset"),
    ]
    second = next((name for name in best_first if name not in (best, OWN)), None)
    if second is not None:
        difference = in_points(_gain(scores, best, second, metric))
        sentences.append(f"{best} over the second, {second}: {difference}")
    return chosen, float(np.sqrt(np.mean(spread))), sentences


def expected_best(count: int) -> float:
    """Return the mean of the highest of ``count`` standard normal draws."""
    draw = np.random.default_rng(0)
    return float(draw.standard_normal((NUM_SIMULATED, count)).max(1).mean())


def _folder(run: RunConfig) -> Path:
    return RunDirectory.of(run.output, str(run.name)).path


def _means(scores: Mapping[str, Sequence[Mapping[str, PerQuery]]], metric: str) -> dict[str, float]:
    return {name: float(np.mean([ratio(run[metric]) for run in of])) for name, of in scores.items()}


def _gain(
    scores: Mapping[str, Sequence[Mapping[str, PerQuery]]], ours: str, base: str, metric: str
) -> Difference:
    return paired_differences_over_seeds(scores[ours], scores[base])[metric]
