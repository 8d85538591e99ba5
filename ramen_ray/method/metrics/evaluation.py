"""Evaluate a model on one split of a prepared dataset: embed, search, filter, measure."""

import numpy as np

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.distributed import (
    from_first_worker,
    gather_arrays,
    gather_at_first,
    own_range,
    world,
)
from ramen_ray.method.metrics.judgement import Judgement, Propensity
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import TopK, merge_topk, search

QUERIES_PER_BLOCK = 1 << 14


def evaluate(
    model: DualEncoder,
    data: Prepared,
    split: str,
    propensity: Propensity,
    use_bf16: bool = False,
) -> tuple[dict[str, float], TopK]:
    """Embed, search and measure one split, divided among the workers.

    Each worker embeds its share of the candidates (:meth:`Prepared.candidates`) and queries and
    searches its own ads for all queries. Every worker returns the same metrics; the first also
    returns the best ads of each query, the others those of none.
    """
    judgement = Judgement.from_prepared(data, split, propensity)
    queries, own_ads = data.queries[split], model.own_share(data.candidates(split))
    ad_embeddings = model.embed_ads(data.ads, own_ads, use_bf16)
    embedded = model.embed_queries(queries, own_range(len(queries)), use_bf16)
    query_embeddings = np.concatenate(gather_arrays(embedded))
    depth = judgement.depth
    found = search(query_embeddings, ad_embeddings, depth, model.device.index, own_ads)
    best = _merged(found, depth)
    if world()[0] > 0:
        return from_first_worker({}), best
    shown = judgement.shown(best)
    return from_first_worker(judgement.metrics(shown[0])), shown


def _merged(found: TopK, depth: int) -> TopK:
    """Return the best of all workers' ads (queries, depth) on the first, a block at a time."""
    merged = []
    for start in range(0, len(found[0]), QUERIES_PER_BLOCK):
        block = slice(start, start + QUERIES_PER_BLOCK)
        parts = list(zip(*(gather_at_first(array[block]) for array in found), strict=True))
        merged += [merge_topk(parts, depth)] if parts else []
    if not merged:
        return found[0][:0], found[1][:0]
    ads, scores = zip(*merged, strict=True)
    return np.concatenate(ads), np.concatenate(scores)
