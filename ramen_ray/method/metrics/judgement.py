"""Predictions measured: against the clicks of a split, with the popularity of its ads."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Float64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.ranking import (
    PerQuery,
    clicks_on,
    group_metrics,
    inverse_propensities,
    popularity_groups,
    query_metrics,
    ratios,
)

KS = (1, 3, 5, 10, 100)
GROUP_KS = (1, 5, 10)
METRICS = [f"{name}@{k}" for k in KS for name in ("P", "N", "R", "PSP", "PSN")] + [
    f"{group}/{name}@{k}" for group in ("head", "torso", "tail") for k in GROUP_KS for name in "PR"
]
"""The names of what :meth:`Judgement.metrics` gives."""


@dataclass(frozen=True)
class Propensity:
    """The constants of the propensity model (Jain et al. 2016); A and B of the literature."""

    a: float = 0.55
    b: float = 1.5


@dataclass(frozen=True)
class Judgement:
    """What decides how good predictions are.

    Attributes:
        truth: queries x ads, the clicks to be found.
        inverse: (ads,) inverse propensities.
        groups: of the ads by popularity: head, torso and tail.
    """

    truth: Csr
    inverse: Float64s
    groups: Mapping[str, Booleans]

    @classmethod
    def from_clicks(
        cls,
        truth: Csr,
        train_click_counts: NDArray[np.int64],
        num_train_queries: int,
        propensity: Propensity,
    ) -> "Judgement":
        """Take popularity and propensity from the train clicks (ads,) of each ad.

        Propensity counts the train queries that have clicks: others are no data points.
        """
        a, b = propensity.a, propensity.b
        inverse = inverse_propensities(train_click_counts, num_train_queries, a, b)
        return cls(truth, inverse, popularity_groups(train_click_counts))

    @classmethod
    def from_prepared(cls, data: Prepared, split: str, propensity: Propensity) -> "Judgement":
        """Judge predictions for the queries of a split."""
        counts = data.train_click_counts
        num_queries = len(data.clicked_queries)
        return cls.from_clicks(data.clicks[split], counts, num_queries, propensity)

    def by_query(self, topk_ad_ids: NDArray[np.int64]) -> dict[str, PerQuery]:
        """Measure predictions (queries, k), best first, -1 where there is no more, by query.

        ``METRICS``: overall, and by the ads' popularity.
        """
        overall = query_metrics(topk_ad_ids, self.truth, self.inverse, KS)
        return overall | group_metrics(topk_ad_ids, self.truth, self.groups, GROUP_KS)

    def metrics(self, topk_ad_ids: NDArray[np.int64]) -> dict[str, float]:
        """Return the metrics of :meth:`by_query` over all queries."""
        return ratios(self.by_query(topk_ad_ids))

    def on_tail(self) -> "Judgement":
        """Judge by the clicks on ads of the tail only."""
        return Judgement(clicks_on(self.truth, self.groups["tail"]), self.inverse, self.groups)
