"""The end of sweeps, ablations and searches: which candidate to take, and what to expect of it.

The best of many looks better than it is on what chose it. So each half of the validation queries,
in each run, measures the candidate that the other half prefers in the other runs: what is told of
the best is of queries and seeds that did not choose it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.same_texts import alike_queries
from ramen_ray.method.metrics.comparison import (
    Difference,
    in_points,
    paired_differences_over_seeds,
)
from ramen_ray.method.metrics.ranking import PerQuery, ratio

Runs = Sequence[Mapping[str, PerQuery]]
"""Runs of one candidate with different seeds: metrics by validation query."""
BEYOND_SEEDS = 2.8
"""Standard deviations over seeds, by the root of how many: two for a difference of two means."""
NUM_SIMULATED = 20_000


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
