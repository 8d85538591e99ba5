"""The end of sweeps, ablations and searches: candidates trained with several seeds, and the choice.

The best of many looks better than it is on what chose it. So each half of the validation queries,
in each run, measures the candidate that the other half prefers in the other runs: what is told of
the best is of queries and seeds that did not choose it.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ray import tune

from ramen_ray.config import RunConfig
from ramen_ray.data.arrays import Booleans
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.same_texts import alike_queries
from ramen_ray.errors import UserError
from ramen_ray.method.metrics.comparison import (
    Difference,
    in_points,
    paired_differences_over_seeds,
)
from ramen_ray.method.metrics.ranking import PerQuery, ratio
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.identity import finished_run
from ramen_ray.orchestration.run.inputs import edges_to_train, prepared_data
from ramen_ray.orchestration.tune.draws import NAME
from ramen_ray.orchestration.tune.experiment import FAILED, Experiment
from ramen_ray.orchestration.tune.settings import FURTHER_SEEDS
from ramen_ray.orchestration.tune.trials import OnEnd, Trials
from ramen_ray.reports.search_report import TrialRecord

Repeated = Mapping[str, Sequence[RunConfig]]
"""The runs of each candidate, with the same seeds."""
Runs = Sequence[Mapping[str, PerQuery]]
"""Runs of one candidate with different seeds: metrics by validation query."""
BEYOND_SEEDS = 2.8
"""Standard deviations over seeds, by the root of how many: two for a difference of two means."""
NUM_SIMULATED = 20_000

logger = logging.getLogger(__name__)


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


def train_all(
    experiment: Experiment,
    configs: Mapping[str, RunConfig],
    decides: Sequence[str],
    tuned: Collection[str] = (),
    on_end: OnEnd = lambda records: None,
    **limits: Any,
) -> str:
    """Train configurations, by their names, as runs of an experiment; if one fails, others go on.

    They have one dataset, and the same workers and metric; see :class:`Trials` for the others.
    ``limits`` are of Tune's TuneConfig. Returns which runs failed, in words; "" if none did.
    """
    dataset = experiment.inputs.dataset
    for config in configs.values() if experiment.inputs.config.workers.num_workers == 1 else ():
        with suppress(UserError):  # its trial will tell
            edges_to_train(config, prepared_data(config, dataset))
    trials = Trials(
        experiment, lambda params, _: configs[params[NAME]], decides, len(configs), tuned, on_end
    )
    records = trials.fit({NAME: tune.grid_search(list(configs))}, **limits)
    if not limits and len(records) < len(configs):
        raise KeyboardInterrupt  # before Tune had drawn the rest
    return _failures(records)


def _failures(records: Collection[TrialRecord]) -> str:
    """Say which runs failed, each error once; "" if none did."""
    names = defaultdict[str, list[str]](list)
    for record in records:
        if record.end.startswith(FAILED):
            names[record.end.removeprefix(FAILED)].append(record.name)
    if not names:
        return ""
    count = sum(map(len, names.values()))
    lines = "\n".join(f"  {', '.join(failed)}: {error}" for error, failed in names.items())
    return f"{count} of {len(records)} runs failed:\n{lines}"


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
    metric = experiment.inputs.config.training.selection_metric
    if failed := train_all(experiment, missing, [metric]):
        raise RunError(failed)


def scores_of(
    run: RunConfig, data: Prepared, split: str, metrics: Iterable[str]
) -> dict[str, PerQuery]:
    """Return some metrics of a finished run by query."""
    scores = scores_of_run(directory_of(run).path, run, data, split)
    return {name: scores[name] for name in metrics}


def directory_of(run: RunConfig) -> RunDirectory:
    """Return the folder of a run that has a name."""
    return RunDirectory.of(run.output, str(run.name))


def half_of_validation(dataset: Dataset, seed: int) -> Booleans:
    """Flag a half of the validation queries (queries,); those of the same words go together."""
    pieces = alike_queries(dataset, "validation")
    return (np.random.default_rng(seed).random(pieces.max() + 1) < 0.5)[pieces]


@dataclass(frozen=True)
class Choice:
    """Which candidate to take, and why."""

    chosen: str
    expected: Runs  # what to expect of it
    noise: float  # standard deviation of the metric over seeds; 0 if there is only one
    sentences: list[str]

    def gains(self, others: Runs) -> dict[str, Difference]:
        """Return by how much another candidate, with the same seeds, is behind."""
        return paired_differences_over_seeds(self.expected, others)


def choose(scores: Mapping[str, Runs], half: Booleans, metric: str, default: str) -> Choice:
    """Choose the best candidate if it beats the default beyond noise, or else the default.

    Where no candidate differs, one in twenty choices is not the default.

    ``scores`` are by candidate, of the same seeds; a default that is not among them is beaten.
    ``half`` (queries,) flags the queries of one half.
    """
    best_first = sorted(
        scores.keys() - {default}, key=lambda name: (-mean(scores[name], metric), name)
    )
    noise = _noise(scores, metric)
    if not best_first:
        return Choice(default, scores[default], noise, [f"{default}: there is no other"])
    best = best_first[0]
    expected = _expected({name: scores[name] for name in best_first}, half, metric)
    sentences = [
        f"{best} is the best of {len(best_first)} by {metric} on validation; expect "
        f"{100 * mean(expected, metric):.2f}, by queries and seeds that did not choose"
    ]
    by_choosing = Choice(best, expected, noise, sentences)
    if len(best_first) > 1:
        lead = by_choosing.gains(scores[best_first[1]])[metric]
        sentences.append(f"over the second, {best_first[1]}: {in_points(lead)}")
    if default not in scores:
        sentences.append(f"{default}, the default, was not trained to the end")
        return by_choosing
    gain = by_choosing.gains(scores[default])[metric]
    level = f"over the default, {default}: {in_points(gain)}"
    if gain.low > 0 and gain.value > BEYOND_SEEDS * noise / len(expected) ** 0.5:
        sentences.append(level)
        return by_choosing
    sentences.append(f"{level}; no better by more than noise, so take {default}")
    return Choice(default, scores[default], noise, sentences)


def choose_trained(experiment: Experiment, runs: Repeated, data: Prepared, default: str) -> Choice:
    """Choose among candidates, whose runs are finished, by their selection metric on validation."""
    config = experiment.inputs.config
    metric = config.training.selection_metric
    scores = {
        name: [scores_of(run, data, "validation", [metric]) for run in of_candidate]
        for name, of_candidate in runs.items()
    }
    seed = runs[default][0].seed
    return choose(scores, half_of_validation(experiment.inputs.dataset, seed), metric, default)


def mean(runs: Runs, metric: str) -> float:
    """Return the mean of a metric over runs."""
    return float(np.mean([ratio(run[metric]) for run in runs]))


def luck(values: Sequence[float], noise: float) -> str:
    """Say how far the best trial is ahead, and how far it would be by the ``noise`` of seeds."""
    lead = max(values) - float(np.mean(values))
    by_luck = noise * expected_best(len(values))
    return (
        f"the best of {len(values)} trials was {100 * lead:.2f} above their mean; of as many that "
        f"differ by nothing but seeds it would be {100 * by_luck:.2f}"
    )


def expected_best(count: int) -> float:
    """Return the mean of the highest of ``count`` standard normal draws."""
    draw = np.random.default_rng(0)
    return float(draw.standard_normal((NUM_SIMULATED, count)).max(1).mean())


def _expected(scores: Mapping[str, Runs], half: Booleans, metric: str) -> Runs:
    """Return runs of what choosing among candidates brings, measured by what did not choose."""
    numbers = range(len(next(iter(scores.values()))))
    runs = []
    for number in numbers:
        others = [other for other in numbers if other != number] or [number]
        halves = []
        for measured in (half, ~half):
            preferred = max(
                scores,
                key=lambda name: mean(
                    [_among(scores[name][run], ~measured) for run in others], metric
                ),
            )
            halves.append(_among(scores[preferred][number], measured))
        runs.append({name: _sum(*(of_half[name] for of_half in halves)) for name in halves[0]})
    return runs


def _among(scores: Mapping[str, PerQuery], counted: Booleans) -> dict[str, PerQuery]:
    """Return metrics by query, 0 of 0 for those that are not ``counted``."""
    return {
        name: (gained * counted, possible * counted) for name, (gained, possible) in scores.items()
    }


def _sum(first: PerQuery, second: PerQuery) -> PerQuery:
    return first[0] + second[0], first[1] + second[1]


def _noise(scores: Mapping[str, Runs], metric: str) -> float:
    values = np.array([[ratio(run[metric]) for run in runs] for runs in scores.values()])
    if values.shape[1] == 1:
        return 0.0
    return float(np.sqrt(values.var(axis=1, ddof=1).mean()))
