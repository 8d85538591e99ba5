"""Encode, search, filter, measure: one split of a prepared dataset with one encoder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Float64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.metrics.ranking import (
    PerQuery,
    clicks_on,
    group_metrics,
    inverse_propensities,
    popularity_groups,
    query_metrics,
    ratios,
)
from ramen_ray.method.model.encoder import Encoder
from ramen_ray.method.model.texts import TextTokenizer, TokenBatch
from ramen_ray.method.retrieval.search import TopK, drop_filtered, merge_topk, most_filters, search
from ramen_ray.method.training.distributed import gather_arrays, own_range

KS = (1, 3, 5, 10, 100)
GROUP_KS = (1, 5, 10)
METRICS = [f"{name}@{k}" for k in KS for name in ("P", "N", "R", "PSP", "PSN")] + [
    f"{group}/{name}@{k}" for group in ("head", "torso", "tail") for k in GROUP_KS for name in "PR"
]
"""The names of what :func:`measure_queries` measures."""
TEXTS_PER_PASS = 2048


@dataclass(frozen=True)
class Propensity:
    """The constants of the propensity model (Jain et al. 2016); A and B of the literature."""

    a: float = 0.55
    b: float = 1.5


@torch.inference_mode()
def encode_rows(
    encoder: Encoder, table: TokenTable, rows: NDArray[Any], use_bf16: bool = False
) -> NDArray[np.float32]:
    """Encode the texts ``rows`` (n,) of ``table``; returns unit-norm embeddings (n, D) float32."""
    if not len(rows):
        return np.empty((0, encoder.dim), dtype=np.float32)
    device = next(encoder.parameters()).device
    by_length = np.argsort(table.lengths(rows), kind="stable")
    parts = []
    for start in range(0, len(rows), TEXTS_PER_PASS):
        chosen = rows[by_length[start : start + TEXTS_PER_PASS]]
        batch = TokenBatch(table.gather(chosen), table.lengths(chosen))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bf16):
            parts.append(encoder(batch).float().cpu().numpy())
    embeddings = np.empty((len(rows), parts[0].shape[1]), dtype=np.float32)
    embeddings[by_length] = np.concatenate(parts)
    return embeddings


def encode_texts(
    encoder: Encoder, tokenize: TextTokenizer, texts: list[str]
) -> NDArray[np.float32]:
    """Encode ``texts`` (n,); returns unit-norm embeddings (n, D) float32."""
    token_ids, lengths = tokenize(texts)
    no_hashes = np.zeros(len(texts), dtype=np.uint64)
    table = TokenTable(token_ids, np.append(0, lengths.cumsum()), no_hashes)
    return encode_rows(encoder, table, np.arange(len(texts)))


def measure_queries(
    topk_ad_ids: NDArray[np.int64], truth: Csr, inverse: Float64s, groups: Mapping[str, Booleans]
) -> dict[str, PerQuery]:
    """Measure predictions (queries, k) query by query: overall, and by groups of ads.

    Args:
        topk_ad_ids: best first, -1 where there is no more.
        truth: queries x ads.
        inverse: (ads,) inverse propensities.
        groups: of the ads (:func:`~ramen_ray.method.metrics.ranking.popularity_groups`).
    """
    overall = query_metrics(topk_ad_ids, truth, inverse, KS)
    return overall | group_metrics(topk_ad_ids, truth, groups, GROUP_KS)


def score(topk: TopK, data: Prepared, split: str, propensity: Propensity) -> dict[str, float]:
    """Measure predictions for all queries of ``split``: overall, and by the ads' popularity."""
    counts = data.train_click_counts
    inverse = inverse_propensities(counts, len(data.query_ids), propensity.a, propensity.b)
    groups = popularity_groups(counts)
    return ratios(measure_queries(topk[0], data.clicks[split], inverse, groups))


def score_queries(
    topk_ad_ids: NDArray[np.int64], data: Prepared, split: str, propensity: Propensity
) -> dict[str, PerQuery]:
    """Measure predictions (queries, k) query by query: overall, and on ads of the tail only.

    ``tail/`` counts clicks on ads of the tail only (:func:`popularity_groups`).
    """
    counts, truth = data.train_click_counts, data.clicks[split]
    inverse = inverse_propensities(counts, len(data.query_ids), propensity.a, propensity.b)
    on_tail = clicks_on(truth, popularity_groups(counts)["tail"])
    tail = query_metrics(topk_ad_ids, on_tail, inverse, KS)
    overall = query_metrics(topk_ad_ids, truth, inverse, KS)
    return overall | {f"tail/{name}": values for name, values in tail.items()}


def retrieve(
    query_embeddings: NDArray[np.float32],
    ad_parts: Iterable[NDArray[np.float32]],
    ad_ids: NDArray[np.int64],
    filter_pairs: NDArray[np.int64],
) -> TopK:
    """Search ads that come in consecutive parts, and drop the filter pairs.

    Memory holds one part and the best ads so far, however many parts there are.

    Args:
        query_embeddings: (queries, D) float32.
        ad_parts: (ads of the part, D) float32 each.
        ad_ids: (ads,) the ads' ids, in the order of the parts.
        filter_pairs: (pairs, 2) of (query row, ad id).
    """
    k = max(KS) + most_filters(filter_pairs)
    best: list[TopK] = []
    first = 0
    for part in ad_parts:
        ads, scores = search(query_embeddings, part, k)
        ids = np.append(ad_ids[first : first + len(part)], -1)  # search says -1 for no more ads
        best = [merge_topk([*best, (ids[ads], scores)], k)]
        first += len(part)
    return drop_filtered(best[0], filter_pairs, max(KS))


def evaluate(
    encoder: Encoder, data: Prepared, split: str, propensity: Propensity, use_bf16: bool = False
) -> tuple[dict[str, float], TopK]:
    """Encode, search and measure one split, shared out over the workers.

    Each worker encodes its share of the candidates (:meth:`Prepared.candidates`) and queries and
    searches its own ads for all queries; every worker returns the same metrics and the same best
    ads of each query.
    """
    device = next(encoder.parameters()).device
    queries, filter_pairs = data.queries[split], data.filters(split)
    candidates = data.candidates(split)
    own_ads, own_queries = candidates[own_range(len(candidates))], own_range(len(queries))
    ad_embeddings = encode_rows(encoder, data.ads, own_ads, use_bf16)
    embedded = encode_rows(encoder, queries, own_queries, use_bf16)
    query_embeddings = np.concatenate(gather_arrays(embedded, device))
    k = max(KS) + most_filters(filter_pairs)
    ads, scores = search(query_embeddings, ad_embeddings, k, device.index)
    ads = np.append(own_ads, -1)[ads]
    results = zip(gather_arrays(ads, device), gather_arrays(scores, device), strict=True)
    topk = drop_filtered(merge_topk(list(results), k), filter_pairs, max(KS))
    return score(topk, data, split, propensity), topk
