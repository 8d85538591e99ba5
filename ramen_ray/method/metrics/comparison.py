"""Differences of the metrics of two models on the same queries, and whether they are noise.

Where it is asked again and again, as each week, :class:`Evidence` says so: the k-th time may err
with a chance of ALPHA / (k (k + 1)); all times together then with ALPHA.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import NormalDist
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
    of_ours, of_base = _sampled_ratios((ours, base), names)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(of_ours - of_base, [tail, 1 - tail], axis=0)
    values = [ratio(sides[0][name]) - ratio(sides[1][name]) for name in names]
    bounds = zip(values, low.tolist(), high.tolist(), strict=True)
    return dict(zip(names, map(Difference._make, bounds), strict=True))


def _sampled_ratios(
    sides: Sequence[Sequence[Mapping[str, PerQuery]]], names: Sequence[str]
) -> list[Float64s]:
    """Return each side's metrics (samples, metrics) over the same samples of queries and runs."""
    draw = np.random.default_rng(0)
    values = [[part for run in runs for name in names for part in run[name]] for runs in sides]
    of_both = np.stack([*values[0], *values[1]], 1)
    num_queries = len(of_both)
    at_once = max(DRAWS_AT_ONCE // num_queries, 1)
    even = np.full(num_queries, 1 / num_queries)
    sums = np.concatenate(
        [
            draw.multinomial(num_queries, even, size=min(at_once, NUM_SAMPLES - start)) @ of_both
            for start in range(0, NUM_SAMPLES, at_once)
        ]
    )
    of_sides = np.split(sums, [len(values[0])], axis=1)
    return [
        _over_runs(of_side.reshape(NUM_SAMPLES, len(runs), -1), deepcopy(draw))
        for of_side, runs in zip(of_sides, sides, strict=True)
    ]


def _over_runs(of_runs: Float64s, draw: np.random.Generator) -> Float64s:
    """Return metrics (samples, metrics) over samples of runs; sums are (samples, runs, parts)."""
    num_samples, num_runs, _ = of_runs.shape
    drawn = draw.multinomial(num_runs, np.full(num_runs, 1 / num_runs), size=num_samples)
    sums = np.einsum("sr,srm->sm", drawn, of_runs)
    gained = sums[:, ::2]
    possible = sums[:, 1::2]
    return np.divide(gained, possible, out=np.zeros_like(gained), where=possible > 0)


ALPHA = 0.05
"""The share of histories in which a model that is no better is ever taken for a better one."""
NORMAL = NormalDist()


@dataclass(frozen=True)
class Evidence:
    """A difference of two models in a metric, on queries that are not alike."""

    value: float  # by how much the metric of the one exceeds that of the other
    error: float  # its standard error
    num_queries: int
    num_differing: int  # queries on which the two differ
    time: int  # how many times it was asked, this one included

    @classmethod
    def measured(cls, ours: PerQuery, base: PerQuery, time: int) -> "Evidence":
        """Measure the difference of two models' gains by query.

        If they differ on too few, its error is such that as many as it takes would be noise.
        """
        gains = ours[0] - base[0]
        possible = ours[1]
        num_queries = int(np.count_nonzero(possible))
        value = ratio((gains, possible))
        unknown = cls(value, math.inf, num_queries, int(np.count_nonzero(gains)), time)
        if num_queries < 2:
            return unknown
        spread = np.square(gains - value * possible).sum() * num_queries / (num_queries - 1)
        error = math.sqrt(spread)
        if unknown.num_differing < unknown.least_differing:
            error = unknown.least_differing * possible.max() / unknown.deviations
        return replace(unknown, error=error / possible.sum())

    @property
    def deviations(self) -> float:
        """How many standard errors are beyond noise."""
        return -NORMAL.inv_cdf(self._chance)

    @property
    def noise(self) -> float:
        """The difference that is just not beyond noise."""
        return self.deviations * self.error

    @property
    def least_differing(self) -> int:
        """On how many queries two must differ: if fair coins decided, all would rarely agree."""
        return math.ceil(-math.log2(self._chance))

    def power(self, difference: float) -> float:
        """Return the chance that a true difference is seen on as many such queries."""
        return NORMAL.cdf(difference / self.error - self.deviations)

    def queries_for(self, difference: float, power: float) -> float:
        """Return on how many such queries a true difference would be seen with this chance."""
        errors = self.deviations + NORMAL.inv_cdf(power)
        return self.num_queries * (errors * self.error / difference) ** 2

    def __str__(self) -> str:
        """Say what would be beyond noise, and what would be seen of a difference of one point."""
        if self.num_differing < self.least_differing:
            return (
                f"cannot tell: the two differ on {self.num_differing} queries, and at least "
                f"{self.least_differing} are needed"
            )
        return (
            f"beyond noise is more than {100 * self.noise:.2f}, asked for the {_th(self.time)} "
            f"time; a difference of one point would be seen in {100 * self.power(0.01):.0f} % of "
            f"such tests; about {self.queries_for(0.01, 0.8):,.0f} queries would see it in 80 %"
        )

    @property
    def _chance(self) -> float:
        return ALPHA / (self.time * (self.time + 1))


def _th(number: int) -> str:
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
