"""Validation in two halves: one chooses among trained candidates, and the other measures them.

The best of many on the same queries looks better than it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.same_texts import alike_queries
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.ground_truth import HEADLINES
from ramen_ray.method.metrics.ranking import PerQuery, ratios

MEAN = "mean of the headlines"


def choosing_queries(dataset: Dataset, seed: int) -> Booleans:
    """Flag a half of the validation queries (queries,); those of the same words go together."""
    pieces = alike_queries(dataset, "validation")
    return (np.random.default_rng(seed).random(pieces.max() + 1) < 0.5)[pieces]


@dataclass(frozen=True)
class Halves:
    """Candidates, their metrics by validation query, and which queries choose."""

    scores: Mapping[str, Mapping[str, PerQuery]]  # by candidate
    chooses: Booleans  # (queries,)

    @property
    def num_measuring(self) -> int:
        """Number of the queries that do not choose."""
        return int((~self.chooses).sum())

    def reached(self, candidate: str) -> dict[str, float]:
        """Return the metrics of a candidate, and their mean, on the half that measures."""
        return ratios(self._among(candidate, ~self.chooses))

    def choice(self, default: str) -> tuple[str, str]:
        """Return the best candidate if it beats the default beyond noise, or else that; and why.

        A default that was not trained to the end is beaten.
        """

        def chosen_by(candidate: str) -> tuple[float, bool]:
            return ratios(self._among(candidate, self.chooses))[MEAN], candidate == default

        best = max(self.scores, key=chosen_by)
        if default not in self.scores:
            return best, "as the default was not trained to the end"
        if best == default:
            return default, "the default, and the best"
        if self.gains(best, default)[MEAN].low > 0:
            return best, "better than the default by more than noise"
        return default, f"the default; {best} is no better by more than noise"

    def gains(self, candidate: str, other: str) -> dict[str, Difference]:
        """Return by how much one exceeds another on the half that measures."""
        ours, others = (self._among(name, ~self.chooses) for name in (candidate, other))
        return paired_differences(ours, others)

    def _among(self, candidate: str, counted: Booleans) -> dict[str, PerQuery]:
        """Return metrics by query, 0 of 0 for those that are not ``counted``."""
        scores = {
            name: (gained * counted, possible * counted)
            for name, (gained, possible) in self.scores[candidate].items()
        }
        gains, possibles = zip(*(scores[name] for name in HEADLINES), strict=True)
        return {**scores, MEAN: (sum(gains), sum(possibles))}
