"""Ranking metrics of the extreme-classification literature, vectorised, and those of judgements.

Every ranking metric is a ratio of two sums over queries, the gains and the possible gains, which
are kept by query, so that two models can be compared query by query.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Float64s, Int64s, best_of_each
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.judgements import LOW, Judgements

KS = (1, 3, 5, 10, 100)
GROUP_KS = (1, 5, 10)
OF_GROUPS = [f"{name}@{k}" for k in GROUP_KS for name in "PR"]
METRICS = [f"{name}@{k}" for k in KS for name in ("P", "N", "R", "PSP", "PSN")] + [
    f"{group}/{name}" for group in ("head", "torso", "tail", "traffic") for name in OF_GROUPS
]
"""The names of the metrics that every evaluation returns."""
HEADLINES = ("P@1", "R@10")
"""The metrics that logs and reports show first."""
PerQuery = tuple[Float64s, Float64s]
"""The gain of each query, and its possible gain: (queries,) each."""


def inverse_propensities(
    click_counts: NDArray[np.int64], num_queries: int, a: float, b: float
) -> Float64s:
    """Return the ads' inverse propensities (ads,) after Jain et al. (KDD 2016).

    1 + (ln N - 1) (b + 1)^a (n + b)^-a for an ad with n of the N train queries' clicks.
    """
    c = (np.log(num_queries) - 1.0) * (b + 1.0) ** a
    return np.asarray(1.0 + c * (click_counts + b) ** -a)


def find_hits(topk_ad_ids: NDArray[Any], truth: Csr) -> Booleans:
    """Mark the predictions (queries, k), or -1, that are clicks of ``truth`` (queries x ads)."""
    return _entries(topk_ad_ids, *truth.gather(np.arange(truth.num_rows))) >= 0


def _entries(topk_ad_ids: NDArray[Any], queries: Int64s, ads: Int64s) -> Int64s:
    """Return which of the pairs (pairs,) of a query and an ad predictions are; -1 for none."""
    span = int(max(ads.max(initial=0), topk_ad_ids.max(initial=0))) + 1
    pairs = queries * span + ads
    order = np.argsort(pairs, kind="stable")  # clicks are in order already
    ordered = pairs[order]
    predicted = np.arange(len(topk_ad_ids))[:, None] * span + topk_ad_ids
    places = np.searchsorted(ordered, predicted)
    is_pair = (np.append(ordered, -1)[places] == predicted) & (topk_ad_ids >= 0)
    return np.where(is_pair, np.append(order, -1)[places], -1)


def precision_at(hits: Booleans, k: int) -> Float64s:
    """Return P@k (queries,): the share of clicks among the first k predictions."""
    return hits[:, :k].sum(axis=1) / k


def recall_at(hits: Booleans, num_clicks: NDArray[np.int64], k: int) -> Float64s:
    """Return R@k (queries,): the share of a query's clicks among the first k predictions."""
    return hits[:, :k].sum(axis=1) / np.maximum(num_clicks, 1)


def query_metrics(
    topk_ad_ids: NDArray[Any], truth: Csr, inverse: Float64s, ks: Sequence[int]
) -> dict[str, PerQuery]:
    """Return P, N, R, PSP and PSN at each of ``ks`` by query.

    N has binary gains and discounts 1 / log2(rank + 1); gains of PSP and PSN are weighted by
    ``inverse`` (ads,) propensity. Queries without clicks have gain 0, and only P counts them.
    Predictions (queries, at least max(ks)) are best first, -1 after the last; ``truth`` is queries
    x ads.
    """
    hits = find_hits(topk_ad_ids, truth)
    most = max(ks)
    num_clicks = np.diff(truth.indptr)
    ones = np.ones(len(num_clicks))
    has_clicks = (num_clicks > 0).astype(float)
    rows, ads = truth.gather(np.arange(truth.num_rows))
    best = np.zeros((truth.num_rows, most))  # each query's largest inverse propensities
    kept, ranks = best_of_each(rows, most, -inverse[ads])
    best[rows[kept], ranks] = inverse[ads[kept]]
    all_discounts = 1.0 / np.log2(np.arange(2, most + 2))
    values: dict[str, PerQuery] = {}
    for k in ks:
        hits_at_k = hits[:, :k]
        discounts = all_discounts[:k]
        ideal = np.cumsum(discounts)[np.clip(num_clicks, 1, k) - 1]  # DCG of binary gains
        gains = np.where(hits_at_k, inverse[topk_ad_ids[:, :k]], 0.0)
        possible = best[:, :k].copy()  # sums over part of a row differ in their last digit
        discounts_at_k = discounts[: hits_at_k.shape[1]]
        values[f"P@{k}"] = precision_at(hits, k), ones
        values[f"N@{k}"] = (hits_at_k @ discounts_at_k) / ideal, has_clicks
        values[f"R@{k}"] = recall_at(hits, num_clicks, k), has_clicks
        values[f"PSP@{k}"] = gains.sum(axis=1), possible.sum(axis=1)
        values[f"PSN@{k}"] = (gains @ discounts_at_k) / ideal, (possible @ discounts) / ideal
    return values


def ratio(values: PerQuery) -> float:
    """Return a metric over all queries: the sum of gains divided by that of possible gains."""
    gained, possible = values
    return float(gained.sum() / possible.sum()) if possible.any() else 0.0


def ratios(values: Mapping[str, PerQuery]) -> dict[str, float]:
    """Return metrics over all queries, by name (fractions, not per cent)."""
    return {name: ratio(of_queries) for name, of_queries in values.items()}


def clicks_on(truth: Csr, member: Booleans) -> Csr:
    """Return the clicks (queries x ads) of ``truth`` on the ads that ``member`` (ads,) marks."""
    rows, ads = truth.gather(np.arange(truth.num_rows))
    kept = member[ads]
    return Csr.from_pairs(rows[kept], ads[kept], truth.num_rows)


def popularity_groups(click_counts: NDArray[np.int64]) -> dict[str, Booleans]:
    """Split ads into head, torso and tail by train clicks, each with about a third of the clicks.

    Ads with as many clicks are in the same group; those without are tail.
    """
    order = np.argsort(-click_counts, kind="stable")
    share = np.cumsum(click_counts[order]) / max(int(click_counts.sum()), 1)
    # the click count at which a third (two thirds) of all clicks are covered
    head_from, torso_from = (
        click_counts[order[min(int(np.searchsorted(share, third)), len(order) - 1)]]
        for third in (1 / 3, 2 / 3)
    )
    head = click_counts >= max(head_from, 1)
    torso = (click_counts >= max(torso_from, 1)) & ~head
    return {"head": head, "torso": torso, "tail": ~(head | torso)}


def group_metrics(
    topk_ad_ids: NDArray[Any], truth: Csr, groups: Mapping[str, Booleans], ks: Sequence[int]
) -> dict[str, PerQuery]:
    """Return each group's part of P@k and its own R@k, such as ``tail/P@1``, by query.

    The groups' P@k add up to P@k. R@k is over the queries with clicks in the group.
    """
    hits = find_hits(topk_ad_ids, truth)
    rows, ads = truth.gather(np.arange(truth.num_rows))
    ones = np.ones(truth.num_rows)
    values: dict[str, PerQuery] = {}
    for name, member in groups.items():
        group_hits = hits & member[topk_ad_ids]
        num_clicks = np.bincount(rows[member[ads]], minlength=truth.num_rows)
        has_clicks = (num_clicks > 0).astype(float)
        for k in ks:
            values[f"{name}/P@{k}"] = precision_at(group_hits, k), ones
            values[f"{name}/R@{k}"] = recall_at(group_hits, num_clicks, k), has_clicks
    return values


def judged_metrics(topk_ad_ids: NDArray[Any], judged: Judgements) -> dict[str, PerQuery]:
    """Return what judgements say of predictions (queries, k), best first, -1 after the last.

    By query, at each of GROUP_KS: ``bad@k``, which share of the judged among the first k
    predictions is judged low; ``judged@k``, which share of the first k is judged;
    ``judged/N@k``, nDCG of the grades over the first k judged predictions; ``judged/R@k``, which
    share of the ads that are not judged low is among the first k.
    """
    num_queries, width = topk_ad_ids.shape
    entries = _entries(topk_ad_ids, judged.queries, judged.ads)
    grades = np.append(judged.grades, np.nan)[entries]
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
