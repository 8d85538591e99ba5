"""Ranking metrics of the extreme-classification literature, vectorised.

A metric's values are an array (queries,), so that two models can be compared query by query.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Floats
from ramen_ray.data.csr import Csr

Bools = NDArray[np.bool_]


def inverse_propensities(
    click_counts: NDArray[np.int64], num_queries: int, a: float, b: float
) -> Floats:
    """Return the ads' inverse propensities (ads,) after Jain et al. (KDD 2016).

    1 + (ln N - 1) (b + 1)^a (n + b)^-a for an ad with n of the N train queries' clicks.
    """
    c = (np.log(num_queries) - 1.0) * (b + 1.0) ** a
    return np.asarray(1.0 + c * (click_counts + b) ** -a)


def find_hits(topk_ad_ids: NDArray[Any], truth: Csr) -> Bools:
    """Mark which predictions are clicks; -1 predicts nothing.

    Args:
        topk_ad_ids: (queries, k) ad ids, best first.
        truth: queries x ads.

    Returns:
        (queries, k) bool.
    """
    rows, ads = truth.gather(np.arange(truth.num_rows))
    span = int(max(ads.max(initial=0), topk_ad_ids.max(initial=0))) + 1
    known = rows * span + ads  # ascending, because rows and the ads within a row are
    asked = np.arange(len(topk_ad_ids))[:, None] * span + topk_ad_ids
    if not len(known):
        return np.zeros(topk_ad_ids.shape, dtype=bool)
    place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return (known[place] == asked) & (topk_ad_ids >= 0)


def precision_at(hits: Bools, k: int) -> Floats:
    """Return P@k (queries,): the share of clicks among the first k predictions."""
    return hits[:, :k].sum(axis=1) / k


def recall_at(hits: Bools, num_clicks: NDArray[np.int64], k: int) -> Floats:
    """Return R@k (queries,): the share of a query's clicks among the first k predictions."""
    return hits[:, :k].sum(axis=1) / np.maximum(num_clicks, 1)


def ndcg_at(hits: Bools, num_clicks: NDArray[np.int64], k: int) -> Floats:
    """Return N@k (queries,) with binary gains and 1 / log2(rank + 1) discounts."""
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])[np.minimum(num_clicks, k)]
    shown = hits[:, :k]
    return (shown @ discounts[: shown.shape[1]]) / np.maximum(ideal, discounts[0])


def propensity_scored(
    hits: Bools, topk_ad_ids: NDArray[Any], truth: Csr, inverse: Floats, k: int
) -> dict[str, float]:
    """Return PSP@k and PSN@k: gains weighted by inverse propensity over the best possible sums."""
    gains = np.where(hits[:, :k], inverse[topk_ad_ids[:, :k]], 0.0)
    best = _best_gains(truth, inverse, k)
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    binary_ideal = np.cumsum(discounts)[np.minimum(np.diff(truth.indptr), k) - 1]
    dcg = (gains @ discounts[: gains.shape[1]]) / binary_ideal
    best_dcg = (best @ discounts) / binary_ideal
    return {
        f"PSP@{k}": float(gains.sum() / best.sum()),
        f"PSN@{k}": float(dcg.sum() / best_dcg.sum()),
    }


def _best_gains(truth: Csr, inverse: Floats, k: int) -> Floats:
    """Return each query's k largest inverse propensities (queries, k), zero-padded."""
    rows, ads = truth.gather(np.arange(truth.num_rows))
    order = np.lexsort((-inverse[ads], rows))
    rank = np.arange(len(rows)) - np.repeat(truth.indptr[:-1], np.diff(truth.indptr))
    best = np.zeros((truth.num_rows, k))
    kept = rank < k
    best[rows[kept], rank[kept]] = inverse[ads[order]][kept]
    return best


def ranking_metrics(
    topk_ad_ids: NDArray[Any], truth: Csr, inverse: Floats, ks: Sequence[int]
) -> dict[str, float]:
    """Return P, N, R, PSP and PSN at each of ``ks`` (fractions, not per cent).

    Args:
        topk_ad_ids: (queries, at least max(ks)) ad ids, best first, -1 where there is no more.
        truth: queries x ads; every query has at least one click.
        inverse: (ads,) inverse propensities.
        ks: cut-offs.
    """
    hits = find_hits(topk_ad_ids, truth)
    num_clicks = np.diff(truth.indptr)
    metrics: dict[str, float] = {}
    for k in ks:
        metrics[f"P@{k}"] = float(precision_at(hits, k).mean())
        metrics[f"N@{k}"] = float(ndcg_at(hits, num_clicks, k).mean())
        metrics[f"R@{k}"] = float(recall_at(hits, num_clicks, k).mean())
        metrics |= propensity_scored(hits, topk_ad_ids, truth, inverse, k)
    return metrics


def popularity_groups(click_counts: NDArray[np.int64]) -> dict[str, Bools]:
    """Split ads into head, torso and tail by train clicks, each with about a third of the clicks.

    Ads with equally many clicks are in the same group; ads without a train click are tail.
    """
    order = np.argsort(-click_counts, kind="stable")
    share = np.cumsum(click_counts[order]) / max(int(click_counts.sum()), 1)
    # the click count that is reached when a third (two thirds) of the clicks are covered
    head_from, torso_from = (
        click_counts[order[min(int(np.searchsorted(share, third)), len(order) - 1)]]
        for third in (1 / 3, 2 / 3)
    )
    head = click_counts >= max(head_from, 1)
    torso = (click_counts >= max(torso_from, 1)) & ~head
    return {"head": head, "torso": torso, "tail": ~(head | torso)}


def group_metrics(
    topk_ad_ids: NDArray[Any], truth: Csr, groups: Mapping[str, Bools], ks: Sequence[int]
) -> dict[str, float]:
    """Return each group's part of P@k and its own R@k, such as ``tail/P@1``.

    A group's P@k counts only hits on its ads, so that the groups' values add up to P@k. Its R@k is
    over the queries that have clicks in the group.
    """
    hits = find_hits(topk_ad_ids, truth)
    rows, ads = truth.gather(np.arange(truth.num_rows))
    metrics: dict[str, float] = {}
    for name, member in groups.items():
        group_hits = hits & member[topk_ad_ids]
        num_clicks = np.bincount(rows[member[ads]], minlength=truth.num_rows)
        asked = num_clicks > 0
        for k in ks:
            metrics[f"{name}/P@{k}"] = float(precision_at(group_hits, k).mean())
            recall = recall_at(group_hits[asked], num_clicks[asked], k)
            metrics[f"{name}/R@{k}"] = float(recall.mean()) if len(recall) else 0.0
    return metrics
