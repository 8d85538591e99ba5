"""Metrics of answers that were judged, which clicks say nothing of."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Float64s, best_of_each
from ramen_ray.data.store.judgements import LOW, Judgements
from ramen_ray.method.metrics.ranking import GROUP_KS, PerQuery


def judged_metrics(topk_ad_ids: NDArray[Any], judged: Judgements) -> dict[str, PerQuery]:
    """Return what judgements say of predictions (queries, k), best first, -1 after the last.

    By query, at each of GROUP_KS: ``bad@k``, which share of the judged among the first k
    predictions is judged low; ``judged@k``, which share of the first k is judged;
    ``judged/N@k``, nDCG of the grades over the first k judged predictions; ``judged/R@k``, which
    share of the ads that are not judged low is among the first k.
    """
    num_queries, width = topk_ad_ids.shape
    grades = _grades_of(topk_ad_ids, judged)
    is_judged = ~np.isnan(grades)
    is_low = grades < LOW
    is_high = grades >= LOW
    judged_first = np.argsort(~is_judged, axis=1, kind="stable")
    gains = np.take_along_axis(np.nan_to_num(grades), judged_first, axis=1)
    best = np.zeros((num_queries, max(GROUP_KS)))
    kept, ranks = best_of_each(judged.queries, max(GROUP_KS), -judged.grades)
    best[judged.queries[kept], ranks] = judged.grades[kept]
    high = judged.queries[judged.grades >= LOW]
    num_high = np.bincount(high, minlength=num_queries)
    discounts = 1.0 / np.log2(np.arange(2, max(GROUP_KS) + 2))
    values: dict[str, PerQuery] = {}
    for k in GROUP_KS:
        num_judged = is_judged[:, :k].sum(axis=1)
        ideal = best[:, :k] @ discounts[:k]
        gained = gains[:, :k] @ discounts[: min(k, width)]
        num_found = is_high[:, :k].sum(axis=1)
        values[f"bad@{k}"] = is_low[:, :k].sum(axis=1).astype(float), num_judged.astype(float)
        values[f"judged@{k}"] = num_judged / k, np.ones(num_queries)
        values[f"judged/N@{k}"] = _share(gained, ideal), (ideal > 0).astype(float)
        values[f"judged/R@{k}"] = _share(num_found, num_high), (num_high > 0).astype(float)
    return values


def _share(part: NDArray[Any], whole: NDArray[Any]) -> Float64s:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def _grades_of(topk_ad_ids: NDArray[Any], judged: Judgements) -> Float64s:
    """Return the grade of each prediction (queries, k); NaN if it is not judged."""
    if not len(judged.ads):
        return np.full(topk_ad_ids.shape, np.nan)
    span = int(max(judged.ads.max(), topk_ad_ids.max(initial=0))) + 1
    pairs = judged.queries * span + judged.ads
    order = np.argsort(pairs)
    predicted = np.arange(len(topk_ad_ids))[:, None] * span + topk_ad_ids
    place = order[np.minimum(np.searchsorted(pairs, predicted, sorter=order), len(order) - 1)]
    is_judged = (pairs[place] == predicted) & (topk_ad_ids >= 0)
    return np.where(is_judged, judged.grades[place], np.nan)
