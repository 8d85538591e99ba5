"""Encode, search, filter, measure: one split of a prepared dataset with one encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ramen_ray.data.prepared import Prepared
from ramen_ray.data.tokens import TokenTable
from ramen_ray.method.metrics import (
    group_metrics,
    inverse_propensities,
    popularity_groups,
    ranking_metrics,
)
from ramen_ray.method.search import TopK, drop_filtered, merge_topk, most_filters, search
from ramen_ray.method.texts import TokenBatch

KS = (1, 3, 5, 10, 100)
GROUP_KS = (1, 5, 10)
TEXTS_PER_PASS = 2048


@dataclass(frozen=True)
class Propensity:
    """The constants of the propensity model (Jain et al. 2016); A and B of the literature."""

    a: float = 0.55
    b: float = 1.5


@torch.inference_mode()
def encode_rows(
    encoder: nn.Module, table: TokenTable, rows: NDArray[Any], use_bf16: bool = False
) -> NDArray[np.float32]:
    """Encode the texts ``rows`` (n,) of ``table``; returns unit-norm embeddings (n, D) float32."""
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


def score(topk: TopK, data: Prepared, split: str, propensity: Propensity) -> dict[str, float]:
    """Measure predictions for all queries of ``split``: overall, and by the ads' popularity."""
    counts = data.train_click_counts
    inverse = inverse_propensities(counts, len(data.query_ids), propensity.a, propensity.b)
    truth = data.clicks[split]
    metrics = ranking_metrics(topk[0], truth, inverse, KS)
    return metrics | group_metrics(topk[0], truth, popularity_groups(counts), GROUP_KS)


def retrieve(
    query_embeddings: NDArray[np.float32],
    ad_embeddings: Sequence[NDArray[np.float32]],
    filter_pairs: NDArray[np.int64],
    k: int = max(KS),
) -> TopK:
    """Search ads that lie in consecutive parts and drop the filter pairs."""
    wanted = k + most_filters(filter_pairs)
    results, first = [], 0
    for part in ad_embeddings:
        ads, scores = search(query_embeddings, part, wanted)
        results.append((np.where(ads >= 0, ads + first, -1), scores))
        first += len(part)
    return drop_filtered(merge_topk(results, wanted), filter_pairs, k)
