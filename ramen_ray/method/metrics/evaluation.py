"""Evaluate a model on one split of a prepared dataset: embed, search, filter, measure."""

import numpy as np

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.distributed import gather_arrays, own_range
from ramen_ray.method.metrics.judgement import Judgement, Propensity
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import TopK, merge_topk, search


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
    judgement, device = Judgement.from_prepared(data, split, propensity), model.device
    queries, own_ads = data.queries[split], model.own_share(data.candidates(split))
    ad_embeddings = model.embed_ads(data.ads, own_ads, use_bf16)
    embedded = model.embed_queries(queries, own_range(len(queries)), use_bf16)
    query_embeddings = np.concatenate(gather_arrays(embedded, device))
    found = search(query_embeddings, ad_embeddings, judgement.depth, device.index, own_ads)
    parts = list(zip(*(gather_arrays(array, device) for array in found), strict=True))
    shown = judgement.shown(merge_topk(parts, judgement.depth))
    return judgement.metrics(shown[0]), shown
