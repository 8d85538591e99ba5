"""The k most similar ads of each query, by faiss or torch; equally similar ads in a fixed shuffle.

All searches break ties by hashes of ids, so that no ad gains by its place in a table.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ramen_ray.answering.ranking import QUERIES_PER_PASS as QUERIES_PER_PASS
from ramen_ray.answering.ranking import Ids as Ids
from ramen_ray.answering.ranking import TopK as TopK
from ramen_ray.answering.ranking import merge_topk as merge_topk
from ramen_ray.answering.ranking import search_index as search_index
from ramen_ray.data.arrays import Int64s

try:
    import faiss
except ImportError:  # other indexes than the exact one need it
    faiss = None

ADS_PER_TORCH_BLOCK = 1 << 14
ADS_PER_PART = 262_144
ADS_PER_PRODUCT = 1024  # that faiss multiplies at once: parts of multiples give the same bits
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
    ids: Ids = 0,
) -> TopK:
    """Find each query's k most similar ads by inner product.

    Queries (queries, D) and ads (ads, D) are float32; ads may be mapped, as a CPU copies a part at
    a time. ``gpu`` is the number of a GPU to search on; ``ids`` are the ads'.
    """
    num_ads = len(ad_embeddings)
    best = list[TopK]()
    per_part = ADS_PER_PART if gpu is None else max(num_ads, 1)
    for start in range(0, max(num_ads, 1), per_part):
        index = build_index(ad_embeddings[start : start + per_part], gpu)
        part_ids = ids + start if isinstance(ids, int) else ids[start : start + per_part]
        best.append(search_index(index, query_embeddings, k, part_ids))
        best = [merge_topk(best, k)] if len(best) > 1 else best
    return best[0]


def build_index(ad_embeddings: NDArray[np.float32], gpu: int | None = None) -> Any:
    """Build the index of ads (ads, D) float32 that :func:`search` uses, for several searches.

    It is a TorchIndex on a GPU that the installed faiss cannot use, or if there is no faiss.
    """
    embeddings = np.ascontiguousarray(ad_embeddings)
    if faiss is None or (gpu is not None and faiss.get_num_gpus() == 0):
        return TorchIndex(embeddings, torch.device("cpu" if gpu is None else f"cuda:{gpu}"))
    index: Any = faiss.IndexFlatIP(embeddings.shape[1])
    if gpu is not None:
        torch.cuda.empty_cache()  # faiss cannot have what torch keeps of the GPU's memory
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), gpu, index)
    index.add(embeddings)
    return index


def drop_filtered(topk: TopK, filter_pairs: NDArray[np.int64], k: int) -> TopK:
    """Remove ``filter_pairs`` (pairs, 2) of (query row, ad) from a result and keep the k best."""
    ads, scores = topk
    span = int(max(ads.max(initial=0), filter_pairs[:, 1].max(initial=0))) + 1
    pairs = np.arange(len(ads))[:, None] * span + ads
    dropped = np.isin(pairs, filter_pairs[:, 0] * span + filter_pairs[:, 1]) & (ads >= 0)
    ads = np.where(dropped, -1, ads)
    scores = np.where(dropped, np.float32(-np.inf), scores)
    order = np.argsort(dropped, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ads, order, 1), np.take_along_axis(scores, order, 1)


def most_filters(filter_pairs: NDArray[Any]) -> int:
    """Return the largest number of filter pairs that one query has."""
    return int(np.bincount(filter_pairs[:, 0]).max(initial=0)) if len(filter_pairs) else 0


def share_found(ads: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    """Return the share of ``exact`` (queries, k) that is in the rows of ``ads``, ignoring -1."""
    span = int(max(exact.max(), ads.max())) + 2  # of -1, too: numbers of two rows never meet
    rows = np.arange(len(exact))[:, None] * span
    return float(np.isin(rows + exact, rows + ads)[exact >= 0].mean())


def keep_sample(
    blocks: Iterable[tuple[int, TopK]], sample: Int64s, kept_ads: Int64s
) -> Iterator[tuple[int, TopK]]:
    """Pass on blocks, and keep in ``kept_ads`` (n, k) those of the queries ``sample`` (n,)."""
    for start, best in blocks:
        inside = (sample >= start) & (sample < start + len(best[0]))
        kept_ads[inside] = best[0][sample[inside] - start]
        yield start, best


class TorchIndex:
    """Ads on one device, searched as faiss's ``IndexFlatIP`` does, for GPUs that faiss lacks."""

    def __init__(self, ad_embeddings: NDArray[np.float32], device: torch.device) -> None:
        """Copy the embeddings (ads, D) float32 to ``device``."""
        self._ads_LD = torch.from_numpy(ad_embeddings).to(device)
        self.ntotal = len(ad_embeddings)

    @torch.inference_mode()
    def search(
        self, query_embeddings: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the k largest inner products (queries, k) and their ads' rows; of equal ones, any.

        With fewer than k ads, the rest is -inf and -1.
        """
        num_found = min(k, self.ntotal)
        with _full_precision():
            queries_BD = torch.from_numpy(query_embeddings).to(self._ads_LD.device)
            best_Bk = queries_BD.new_empty((len(queries_BD), 0))
            ads_Bk = torch.empty_like(best_Bk, dtype=torch.int64)
            for first in range(0, self.ntotal, ADS_PER_TORCH_BLOCK):
                scores_BL = queries_BD @ self._ads_LD[first : first + ADS_PER_TORCH_BLOCK].T
                num_best = min(num_found, scores_BL.shape[1])
                of_block_Bk, places_Bk = scores_BL.topk(num_best, dim=1)
                candidates = torch.cat([best_Bk, of_block_Bk], dim=1)
                best_Bk, chosen_Bk = candidates.topk(min(num_found, candidates.shape[1]), dim=1)
                ads_Bk = torch.cat([ads_Bk, places_Bk + first], dim=1).gather(1, chosen_Bk)
            best = best_Bk.cpu().numpy()
            ads = ads_Bk.cpu().numpy()
        missing = [(0, 0), (0, k - num_found)]
        best = np.pad(best, missing, constant_values=-np.inf)
        return best, np.pad(ads, missing, constant_values=-1)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 matrices as such within the ``with`` block; training may allow TF32."""
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(kept)
