"""Evaluate a model on one split of a prepared dataset: embed, search, filter, measure."""

import numpy as np

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.distributed import gather_arrays, own_range
from ramen_ray.method.metrics.judgement import KS, Judgement, Propensity
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import (
    TopK,
    drop_filtered,
    merge_topk,
    most_filters,
    search,
)


def evaluate(
    model: DualEncoder,
    data: Prepared,
    split: str,
    propensity: Propensity,
    use_bf16: bool = False,
) -> tuple[dict[str, float], TopK]:
    """Embed, search and measure one split, divided among the workers.

    Each worker embeds its share of the candidates (:meth:`Prepared.candidates`) and queries and
    searches its own ads for all queries; every worker returns the same metrics and the same best
    ads of each query.
    """
    queries, filter_pairs = data.queries[split], data.filters(split)
    candidates = data.candidates(split)
    own_ads, own_queries = model.own_share(candidates), own_range(len(queries))
    ad_embeddings = model.embed_ads(data.ads, own_ads, use_bf16)
    embedded = model.embed_queries(queries, own_queries, use_bf16)
    device = model.device
    query_embeddings = np.concatenate(gather_arrays(embedded, device))
    k = max(KS) + most_filters(filter_pairs)
    ads, scores = search(query_embeddings, ad_embeddings, k, device.index)
    ads = np.append(own_ads, -1)[ads]
    results = list(zip(gather_arrays(ads, device), gather_arrays(scores, device), strict=True))
    topk = drop_filtered(merge_topk(results[::-1], k), filter_pairs, max(KS))
    return Judgement.from_prepared(data, split, propensity).metrics(topk[0]), topk
