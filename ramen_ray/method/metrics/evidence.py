"""Whether a model is better than another beyond noise, asked again and again, and what would show.

The k-th time may err with a chance of ALPHA / (k (k + 1)); all times together then with ALPHA.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from ramen_ray.method.metrics.ranking import PerQuery, ratio

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
