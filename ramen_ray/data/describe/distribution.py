"""How often each number of clicks, edges or tokens occurs."""

from dataclasses import dataclass

import numpy as np

from ramen_ray.data.arrays import Float64s, Int64s

PER_CENT = {"median": 50, "p90": 90, "p99": 99, "max": 100}


@dataclass(frozen=True)
class Distribution:
    """How often each value occurs, among at least one.

    Attributes:
        values: (values,) int64, ascending.
        counts: (values,) int64, how often each occurs.
    """

    values: Int64s
    counts: Int64s

    @classmethod
    def of(cls, values: Int64s) -> "Distribution":
        """Count ``values`` (n,), in any order."""
        return cls(*np.unique(values, return_counts=True))

    @property
    def size(self) -> int:
        """How many were counted."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """The sum of all that were counted."""
        return int(self.values @ self.counts)

    @property
    def quantiles(self) -> dict[str, float]:
        """Median, p90, p99 and max.

        A quantile q is the smallest value that is at least as large as a fraction q of the values.
        """
        up_to = 100 * np.cumsum(self.counts)
        wanted = np.array([*PER_CENT.values()]) * self.size
        found = self.values[np.searchsorted(up_to, wanted)]
        return dict(zip(PER_CENT, found.astype(float).tolist(), strict=True))

    def count_above(self, limit: int) -> int:
        """Count those above ``limit``."""
        return int(self.counts[self.values > limit].sum())

    def tail(self) -> tuple[Int64s, Float64s]:
        """Return the positive values, ascending, and the share at or above each."""
        share = np.cumsum(self.counts[::-1])[::-1] / self.size
        return self.values[self.values > 0], share[self.values > 0]
