"""Differences of the metrics of two models on the same queries, with confidence intervals."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ramen_ray.data.arrays import Float64s, Int64s
from ramen_ray.method.metrics.ranking import PerQuery, ratio

NUM_SAMPLES = 2000
DRAWS_AT_ONCE = 1 << 24
CONFIDENCE = 0.95


class Difference(NamedTuple):
    """A metric of one model minus that of another, with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


def in_points(difference: tuple[float, float, float], digits: int = 2) -> str:
    """Format a difference and its bounds in points: ``+1.78 [+0.75, +2.85]``."""
    value, low, high = (f"{100 * bound:+.{digits}f}" for bound in difference)
    return f"{value} [{low}, {high}]"


def by_piece(metrics: Mapping[str, PerQuery], pieces: Int64s) -> dict[str, PerQuery]:
    """Add up the gains of queries that are one piece of evidence, by its number (queries,)."""
    _, numbers = np.unique(pieces, return_inverse=True)

    def added(values: Float64s) -> Float64s:
        return np.bincount(numbers, values).astype(np.float64)

    return {name: (added(gained), added(possible)) for name, (gained, possible) in metrics.items()}


def mean_over_seeds(runs: Sequence[Mapping[str, PerQuery]]) -> dict[str, PerQuery]:
    """Return each metric with every query's gains and possible gains averaged over the runs."""
    return {
        name: (
            np.mean([run[name][0] for run in runs], axis=0),
            np.mean([run[name][1] for run in runs], axis=0),
        )
        for name in runs[0]
    }


def paired_differences(
    ours: Mapping[str, PerQuery], base: Mapping[str, PerQuery]
) -> dict[str, Difference]:
    """Return how much the metrics of ``ours`` exceed those of ``base`` on the same queries.

    Intervals are percentiles of a paired bootstrap of 2,000 samples of the queries.
    """
    return paired_differences_over_seeds([ours], [base])


def paired_differences_over_seeds(
    ours: Sequence[Mapping[str, PerQuery]], base: Sequence[Mapping[str, PerQuery]]
) -> dict[str, Difference]:
    """Return how much the metrics of ``ours`` exceed those of ``base``, as means over their runs.

    Runs of the two sides are paired, such as those of the same seed, and have the same queries in
    the same order. A bootstrap sample draws pairs of runs and, independently, queries: intervals
    include the variance between runs, though they underestimate it if there are few.
    """
    sides = mean_over_seeds(ours), mean_over_seeds(base)
    names = list(sides[0])
    sampled = [_sampled_ratios(runs, names) for runs in (ours, base)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sampled[0] - sampled[1], [tail, 1 - tail], axis=0)
    values = [ratio(sides[0][name]) - ratio(sides[1][name]) for name in names]
    bounds = zip(values, low.tolist(), high.tolist(), strict=True)
    return dict(zip(names, map(Difference._make, bounds), strict=True))


def _sampled_ratios(runs: Sequence[Mapping[str, PerQuery]], names: Sequence[str]) -> Float64s:
    """Return metrics (samples, metrics) over samples of queries and runs."""
    draw = np.random.default_rng(0)  # the same queries and runs for both sides
    values = np.stack([part for run in runs for name in names for part in run[name]], 1)
    num_queries = len(values)
    num_runs = len(runs)
    at_once = max(DRAWS_AT_ONCE // num_queries, 1)
    even = np.full(num_queries, 1 / num_queries)
    of_runs = np.concatenate(
        [
            draw.multinomial(num_queries, even, size=min(at_once, NUM_SAMPLES - start)) @ values
            for start in range(0, NUM_SAMPLES, at_once)
        ]
    ).reshape(NUM_SAMPLES, num_runs, -1)
    drawn = draw.multinomial(num_runs, np.full(num_runs, 1 / num_runs), size=NUM_SAMPLES)
    sums = np.einsum("sr,srm->sm", drawn, of_runs)
    gained = sums[:, ::2]
    possible = sums[:, 1::2]
    return np.divide(gained, possible, out=np.zeros_like(gained), where=possible > 0)
