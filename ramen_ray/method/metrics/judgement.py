"""Measure predictions against the clicks of a split and the popularity of its ads."""

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
"""The names of the metrics that :meth:`Judgement.metrics` returns."""


@dataclass(frozen=True)
class Propensity:
    """The constants of the propensity model (Jain et al. 2016): A and B in the literature."""

    a: float = 0.55
    b: float = 1.5


@dataclass(frozen=True)
class Judgement:
    """What predictions are measured against.

    Attributes:
        truth: queries x ads, the clicks to be found.
        inverse: (ads,) inverse propensities.
        groups: the ads by popularity: head, torso and tail.
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
        """Compute popularity and propensity from the number of train clicks (ads,) of each ad.

        Propensity counts only the train queries that have clicks.
        """
        a, b = propensity.a, propensity.b
        inverse = inverse_propensities(train_click_counts, num_train_queries, a, b)
        return cls(truth, inverse, popularity_groups(train_click_counts))

    @classmethod
    def from_prepared(cls, data: Prepared, split: str, propensity: Propensity) -> "Judgement":
        """Return the judgement of predictions for the queries of a split."""
        counts = data.train_click_counts
        num_queries = len(data.clicked_queries)
        return cls.from_clicks(data.clicks[split], counts, num_queries, propensity)

    def by_query(self, topk_ad_ids: NDArray[np.int64]) -> dict[str, PerQuery]:
        """Return ``METRICS`` of predictions (queries, k) by query, overall and by ads' popularity.

        Predictions are ad ids, best first, -1 after the last.
        """
        overall = query_metrics(topk_ad_ids, self.truth, self.inverse, KS)
        return overall | group_metrics(topk_ad_ids, self.truth, self.groups, GROUP_KS)

    def metrics(self, topk_ad_ids: NDArray[np.int64]) -> dict[str, float]:
        """Return the metrics of :meth:`by_query` over all queries."""
        return ratios(self.by_query(topk_ad_ids))

    def on_tail(self) -> "Judgement":
        """Return the judgement by clicks on tail ads only."""
        return Judgement(clicks_on(self.truth, self.groups["tail"]), self.inverse, self.groups)
