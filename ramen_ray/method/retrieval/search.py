"""Exact nearest-neighbour search by faiss or torch, and the removal of filter pairs."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ramen_ray.method.retrieval.torch_search import TorchIndex

try:
    import faiss
except ImportError:  # other indexes than the exact one need it
    faiss = None

TopK = tuple[NDArray[np.int64], NDArray[np.float32]]

QUERIES_PER_PASS = 1024
MOST_BLOCKS, MOST_QUERIES_PER_BLOCK = 1000, 65_536
ADS_PER_PRODUCT = 1024  # that faiss multiplies at once: parts of multiples give the same bits
SPARE, MOST_EQUAL = 8, 1024
"""Ads searched besides k, and, if some beyond the k-th are equal to it, besides k after all."""
MOST_EXACT_PRODUCTS = 10**14
"""Multiplications of an exact search by CPUs; an hour or so of two cores."""


def costs_too_much(num_queries: int, num_ads: int, dim: int) -> bool:
    """Say whether an exact search by CPUs would take too long, so that another kind pays."""
    return num_queries * num_ads * dim > MOST_EXACT_PRODUCTS


def search(
    query_embeddings: NDArray[np.float32],
    ad_embeddings: NDArray[np.float32],
    k: int,
    gpu: int | None = None,
) -> TopK:
    """Find each query's k most similar ads by inner product.

    Args:
        query_embeddings: (queries, D) float32.
        ad_embeddings: (ads, D) float32.
        k: ads per query; with fewer than k ads, the rest is -1 and -inf.
        gpu: search on this GPU; None for the CPU.

    Returns:
        ad row numbers (queries, k) int64 and similarities (queries, k) float32, best first.
    """
    return search_index(build_index(ad_embeddings, gpu), query_embeddings, k)


def build_index(ad_embeddings: NDArray[np.float32], gpu: int | None = None) -> Any:
    """Build the index of ads (ads, D) float32 that :func:`search` uses, for several searches.

    It is one of torch on a GPU that the installed faiss cannot use, or if there is no faiss.
    """
    embeddings = np.ascontiguousarray(ad_embeddings)
    if faiss is None or (gpu is not None and faiss.get_num_gpus() == 0):
        return TorchIndex(embeddings, torch.device("cpu" if gpu is None else f"cuda:{gpu}"))
    index: Any = faiss.IndexFlatIP(embeddings.shape[1])
    if gpu is not None:
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), gpu, index)
    index.add(embeddings)
    return index


def queries_per_block(num_queries: int) -> int:
    """Return how many queries a search in shards passes on at a time.

    One pass, unless that makes very many blocks; a block of the most and its best ads take a few
    hundred megabytes.
    """
    passes = -(-num_queries // QUERIES_PER_PASS)
    return min(QUERIES_PER_PASS * max(-(-passes // MOST_BLOCKS), 1), MOST_QUERIES_PER_BLOCK)


def search_index(index: Any, query_embeddings: NDArray[np.float32], k: int) -> TopK:
    """Find each query's k most similar ads of an index; see :func:`search`.

    Of equally similar ads, those of higher rows come first, as faiss has it. In an exact index on a
    CPU this also decides which are among the k, unless more than MOST_EQUAL are equal: so a search
    over parts finds the same ads as one over all.
    """
    starts = range(0, max(len(query_embeddings), 1), QUERIES_PER_PASS)
    passes = [
        _search_pass(index, query_embeddings[start : start + QUERIES_PER_PASS], k)
        for start in starts
    ]
    ads, scores = (np.concatenate(parts) for parts in zip(*passes, strict=True))
    scores[ads < 0] = -np.inf
    return ads, scores


def _search_pass(index: Any, query_embeddings: NDArray[np.float32], k: int) -> TopK:
    queries = np.ascontiguousarray(query_embeddings)
    if faiss is None or not isinstance(index, faiss.IndexFlat):
        scores, ads = index.search(queries, k)
        return ads, scores
    for depth in (k + SPARE, k + MOST_EQUAL):
        scores, ads = index.search(queries, depth)
        if depth >= index.ntotal or (scores[:, k - 1] > scores[:, -1]).all():
            break
    return ads[:, :k], scores[:, :k]


def merge_topk(parts: list[TopK], k: int) -> TopK:
    """Merge the results of searches over disjoint sets of ads into the k best of each query.

    Of equally similar ads, those of earlier parts come first: give the part of the highest rows
    first, and the result is that of one search.
    """
    ads = np.concatenate([part[0] for part in parts], axis=1)
    scores = np.concatenate([part[1] for part in parts], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ads, order, 1), np.take_along_axis(scores, order, 1)


def search_parts(
    query_embeddings: NDArray[np.float32],
    ad_parts: Iterable[NDArray[np.float32]],
    ad_ids: NDArray[np.int64],
    filter_pairs: NDArray[np.int64],
    k: int,
) -> TopK:
    """Search ads that are given in consecutive parts, and drop the filter pairs.

    Memory holds one part and the best ads so far, however many parts there are.

    Args:
        query_embeddings: (queries, D) float32.
        ad_parts: (ads of the part, D) float32 each.
        ad_ids: (ads,) the ads' ids, in the order of the parts.
        filter_pairs: (pairs, 2) of (query row, ad id).
        k: ads per query.

    Returns:
        ad ids (queries, k) int64 and similarities (queries, k) float32, best first.
    """
    searched = k + most_filters(filter_pairs)
    best: list[TopK] = []
    first = 0
    for part in ad_parts:
        ads, scores = search(query_embeddings, part, searched)
        ids = np.append(ad_ids[first : first + len(part)], -1)  # search returns -1 for no ad
        best = [merge_topk([(ids[ads], scores), *best], searched)]
        first += len(part)
    return drop_filtered(best[0], filter_pairs, k)


def drop_filtered(topk: TopK, filter_pairs: NDArray[np.int64], k: int) -> TopK:
    """Remove ``filter_pairs`` (pairs, 2) of (query row, ad) from a result and keep the k best."""
    ads, scores = topk
    span = int(max(ads.max(initial=0), filter_pairs[:, 1].max(initial=0))) + 1
    found = np.arange(len(ads))[:, None] * span + ads
    dropped = np.isin(found, filter_pairs[:, 0] * span + filter_pairs[:, 1]) & (ads >= 0)
    ads = np.where(dropped, -1, ads)
    scores = np.where(dropped, np.float32(-np.inf), scores)
    order = np.argsort(dropped, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ads, order, 1), np.take_along_axis(scores, order, 1)


def most_filters(filter_pairs: NDArray[Any]) -> int:
    """Return the largest number of filter pairs that one query has."""
    return int(np.bincount(filter_pairs[:, 0]).max(initial=0)) if len(filter_pairs) else 0


def share_found(found: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    """Return the share of ``exact`` (queries, k) that is in the rows of ``found``, ignoring -1."""
    span = int(max(exact.max(), found.max())) + 2  # of -1, too: numbers of two rows never meet
    rows = np.arange(len(exact))[:, None] * span
    return float(np.isin(rows + exact, rows + found)[exact >= 0].mean())
