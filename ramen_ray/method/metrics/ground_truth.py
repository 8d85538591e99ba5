"""Evaluate a model: measure its predictions against the clicks of a split, by ads' popularity."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Float64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, count_clicks
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import Judgements
from ramen_ray.data.store.predictions import Known
from ramen_ray.method.distributed import (
    from_first_worker,
    gather_arrays,
    is_first_worker,
    own_range,
)
from ramen_ray.method.metrics.ranking import (
    GROUP_KS,
    KS,
    OF_GROUPS,
    PerQuery,
    clicks_on,
    group_metrics,
    inverse_propensities,
    judged_metrics,
    popularity_groups,
    query_metrics,
    ratios,
)
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import TopK, drop_filtered, merge_topk, most_filters, search

NO_FILTERS = np.empty((0, 2), dtype=np.int64)
QUERIES_PER_JUDGEMENT = 1 << 14
LEAST_SHARE = 0.01
"""Of a split, fewer train queries are no group: long texts that are alike once they are cut."""


@dataclass(frozen=True)
class Propensity:
    """The constants of the propensity model (Jain et al. 2016): A and B in the literature."""

    a: float = 0.55
    b: float = 1.5


@dataclass(frozen=True)
class GroundTruth:
    """What predictions are measured against."""

    truth: Csr  # queries x ads, the clicks to be found
    inverse: Float64s  # (ads,) inverse propensities
    groups: Mapping[str, Booleans]  # the ads by popularity: head, torso and tail
    traffic: Float64s  # (queries,) the clicks that each query had, by weight
    # (queries,) bool, whether it is a train query too; None if that is not known
    trained: Booleans | None = None
    # (pairs, 2) of (query row, ad id), which are dropped from predictions
    filters: NDArray[np.int64] = field(default_factory=lambda: NO_FILTERS)
    judged: Judgements | None = None

    @classmethod
    def from_clicks(
        cls,
        truth: Csr,
        train_click_counts: NDArray[np.int64],
        num_train_queries: int,
        propensity: Propensity,
        filters: NDArray[np.int64] = NO_FILTERS,
    ) -> "GroundTruth":
        """Compute popularity and propensity from train clicks (ads,), which all weigh the same."""
        inverse = inverse_propensities(
            train_click_counts, num_train_queries, propensity.a, propensity.b
        )
        traffic = np.diff(truth.indptr).astype(np.float64)
        groups = popularity_groups(train_click_counts)
        return cls(truth, inverse, groups, traffic, filters=filters)

    @classmethod
    def from_prepared(cls, data: Prepared, split: str, propensity: Propensity) -> "GroundTruth":
        """Return the judgement of predictions for the queries of a split."""
        counts = data.train_click_counts
        num_queries = len(data.clicked_queries)
        filters = data.filters(split)
        ground_truth = cls.from_clicks(data.clicks[split], counts, num_queries, propensity, filters)
        return replace(
            ground_truth,
            traffic=data.traffic(split),
            trained=data.trained_queries(split),
            judged=data.judgements(split),
        )

    @property
    def depth(self) -> int:
        """How many ads a search must find for each query, as filters drop some."""
        return max(KS) + most_filters(self.filters)

    def shown(self, result: TopK) -> TopK:
        """Return the best ads of a search's result without the filter pairs: what is measured."""
        return drop_filtered(result, self.filters, max(KS))

    def measure(self, result: TopK) -> dict[str, PerQuery]:
        """Return :meth:`by_query` of a search's result."""
        return self.by_query(self.shown(result)[0])

    def by_query(self, topk_ad_ids: NDArray[np.int64]) -> dict[str, PerQuery]:
        """Return ``METRICS`` by query of ad ids (queries, k), best first, -1 after the last.

        If at least a hundredth of the queries were trained on, and as many were not, there are also
        ``seen/`` and ``new/``; and with judgements, those of :func:`judged_metrics`.
        """
        overall = query_metrics(topk_ad_ids, self.truth, self.inverse, KS)
        weights: dict[str, Float64s | Booleans] = {"traffic": self.traffic}
        trained = self.trained
        if trained is not None and LEAST_SHARE <= trained.mean() <= 1 - LEAST_SHARE:
            weights |= {"seen": trained, "new": ~trained}
        weighted = {
            f"{group}/{name}": (overall[name][0] * weight, overall[name][1] * weight)
            for group, weight in weights.items()
            for name in OF_GROUPS
        }
        by_ads = group_metrics(topk_ad_ids, self.truth, self.groups, GROUP_KS)
        by_grades = {} if self.judged is None else judged_metrics(topk_ad_ids, self.judged)
        return overall | by_ads | weighted | by_grades

    def metrics(self, topk_ad_ids: NDArray[np.int64]) -> dict[str, float]:
        """Return the metrics of :meth:`by_query` over all queries."""
        return ratios(self.by_query(topk_ad_ids))

    def known(self, data: Prepared, split: str) -> Known:
        """Return what training knew of the queries of a split, and of the ads."""
        return Known(data.trained_queries(split), np.asarray(data.train_click_counts), self.groups)

    def among(self, member: Booleans) -> "GroundTruth":
        """Return the ground truth of the ads that ``member`` (ads,) flags only."""
        judged = None if self.judged is None else self.judged.among(member)
        return replace(self, truth=clicks_on(self.truth, member), judged=judged)


def read_test_queries(dataset: Dataset, propensity: Propensity) -> tuple[list[str], GroundTruth]:
    """Read the texts of a dataset's test queries, by id, and what measures their predictions."""
    queries = dataset.read("queries/test").sort_by("query_id")
    per_query, per_ad = count_clicks(dataset, "train")
    clicks = dataset.clicks("test")
    query_ids, ad_ids = clicks.nonzero()
    truth = Csr.from_pairs(query_ids, ad_ids, len(queries))
    filters = NO_FILTERS
    if dataset.has("filters/test"):
        pairs = dataset.read("filters/test")
        filters = np.stack([pairs[name].to_numpy() for name in ("query_id", "ad_id")], axis=1)
    num_queries = int((per_query > 0).sum())
    ground_truth = GroundTruth.from_clicks(truth, per_ad, num_queries, propensity, filters)
    traffic = clicks.astype(np.float64).sum(axis=1)
    has_judgements = dataset.has("judged/test")
    judged = Judgements.of(dataset.read("judged/test")) if has_judgements else None
    return queries["text"].to_pylist(), replace(ground_truth, traffic=traffic, judged=judged)


def evaluate(
    model: DualEncoder, data: Prepared, split: str, propensity: Propensity, use_bf16: bool = False
) -> tuple[dict[str, float], TopK]:
    """Embed, search and measure one split, divided among the workers.

    Each worker embeds its share of the candidates and queries, and searches its own ads for all
    queries. All return the same.
    """
    ground_truth = GroundTruth.from_prepared(data, split, propensity)
    queries = data.queries[split]
    own_ads = model.own_share(data.candidates(split))
    ad_embeddings = model.embed_ads(data.ads, own_ads, use_bf16)
    embedded = model.embed_queries(queries, own_range(len(queries)), use_bf16)
    query_embeddings = np.concatenate(gather_arrays(embedded))
    depth = ground_truth.depth
    local_best = search(query_embeddings, ad_embeddings, depth, model.device.index, own_ads)
    best = ground_truth.shown(_merged(local_best, depth))
    metrics = ground_truth.metrics(best[0]) if is_first_worker() else {}
    return from_first_worker(metrics), best


def _merged(local_best: TopK, depth: int) -> TopK:
    """Return the best of all workers' ads, which are gathered by blocks."""
    merged = [(local_best[0][:0], local_best[1][:0])]
    for start in range(0, len(local_best[0]), QUERIES_PER_JUDGEMENT):
        block = slice(start, start + QUERIES_PER_JUDGEMENT)
        parts = zip(*(gather_arrays(array[block]) for array in local_best), strict=True)
        merged.append(merge_topk([*parts], depth))
    ads, scores = zip(*merged, strict=True)
    return np.concatenate(ads), np.concatenate(scores)
