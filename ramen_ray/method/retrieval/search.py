"""The k most similar ads of each query, by faiss or torch; equally similar ads in a fixed shuffle.

All searches break ties by hashes of ids, so that no ad gains by its place in a table.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.hashing import mix

try:
    import faiss
except ImportError:  # other indexes than the exact one need it
    faiss = None

TopK = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Ads (queries, k), -1 after the last, and similarities (queries, k), -inf there; best first."""
Ids = NDArray[np.int64] | int  # the ids (rows,) of an index's rows, or the first of consecutive ids

QUERIES_PER_PASS = 1024
ADS_PER_TORCH_BLOCK = 1 << 14
ADS_PER_PART = 262_144
ADS_PER_PRODUCT = 1024  # that faiss multiplies at once: parts of multiples give the same bits
SPARE, MOST_EQUAL = 8, 1024
"""Ads searched besides k, and besides k after all if some beyond the k-th are equal to it."""
EQUAL = np.float32(1e-6)
"""Scores that differ by less count as equal: rounding makes those of one text differ."""
SCORES_AT_ONCE = 1 << 24
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
    a time. ``gpu`` is the number of one to search on; ``ids`` are the ads'.
    """
    num_ads, best = len(ad_embeddings), list[TopK]()
    per_part = ADS_PER_PART if gpu is None else max(num_ads, 1)
    for start in range(0, max(num_ads, 1), per_part):
        index = build_index(ad_embeddings[start : start + per_part], gpu)
        own = ids + start if isinstance(ids, int) else ids[start : start + per_part]
        best.append(search_index(index, query_embeddings, k, own))
        best = [merge_topk(best, k)] if len(best) > 1 else best
    return best[0]


def build_index(ad_embeddings: NDArray[np.float32], gpu: int | None = None) -> Any:
    """Build the index of ads (ads, D) float32 that :func:`search` uses, for several searches.

    It is one of torch on a GPU that the installed faiss cannot use, or if there is no faiss.
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


def search_index(
    index: Any,
    query_embeddings: NDArray[np.float32],
    k: int,
    ids: Ids = 0,
    rows: range | NDArray[np.int64] | None = None,
) -> TopK:
    """Find each query's k most similar ads of an index, of faiss or torch, of rows from 0 on.

    But for faiss's graphs and GPUs, hashes of ids also decide which of equally similar ads are
    among the k; so an exact search over parts finds the same ads as one over all. Queries (queries,
    D) are float32; ``ids`` are those of the index's rows. With ``rows`` it finds about what would
    be found if the index had only these.
    """
    find, queries = _finder(index, ids, rows), np.ascontiguousarray(query_embeddings)
    depths = [k + SPARE, k + MOST_EQUAL, index.ntotal if rows is None else len(rows)]
    depths[-1] = max(depths[-1], 1)
    if not isinstance(index, SCANNED):
        depths = [k]  # deeper, it would find others
    starts = range(0, max(len(queries), 1), QUERIES_PER_PASS)
    passes = [
        _search_pass(find, queries[start : start + QUERIES_PER_PASS], k, depths) for start in starts
    ]
    ads, scores = (np.concatenate(parts) for parts in zip(*passes, strict=True))
    return ads, scores


Find = Callable[[NDArray[np.float32], int], TopK]
"""Finds ads at least so deep, by any rule for ties."""


def _finder(index: Any, ids: Ids, rows: range | NDArray[np.int64] | None) -> Find:
    how: dict[str, Any] = {}
    if rows is not None and len(rows) < index.ntotal:
        if isinstance(rows, range):
            only = faiss.IDSelectorRange(rows.start, rows.stop)
        else:
            only = faiss.IDSelectorBatch(np.asarray(rows))
        if isinstance(index, faiss.IndexHNSW):  # ignored ads are candidates too
            candidates = index.hnsw.efSearch * index.ntotal // max(len(rows), 1)
            how["params"] = faiss.SearchParametersHNSW(sel=only, efSearch=candidates)
        elif isinstance(index, faiss.IndexIVF):
            how["params"] = faiss.SearchParametersIVF(sel=only, nprobe=index.nprobe)
        else:
            how["params"] = faiss.SearchParameters(sel=only)
    table = None if isinstance(ids, int) else np.append(ids, -1)  # row -1 is no ad

    def find(queries: NDArray[np.float32], depth: int) -> TopK:
        scores, found = index.search(queries, depth, **how)
        scores[found < 0] = -np.inf
        return np.where(found < 0, -1, found + ids if table is None else table[found]), scores

    return find


def _search_pass(find: Find, queries: NDArray[np.float32], k: int, depths: list[int]) -> TopK:
    """Search deeper, at last in all ads, while more ads than were found may equal the k-th."""

    def found(rows: Any, depth: int) -> tuple[TopK, NDArray[np.int64]]:
        ads, scores = find(queries[rows], depth)
        is_tied = _are_equal(scores[:, [k - 1, -1]])[:, 0]
        return best_first(ads, scores, k), np.flatnonzero(is_tied & (depth < depths[-1]))

    (ads, scores), tied = found(slice(None), depths[0])
    if len(tied):  # the whole pass again: other rows beside a query may change its last bits
        (ads, scores), tied = found(slice(None), depths[1])
    at_once = max(SCORES_AT_ONCE // depths[-1], 1)
    for start in range(0, len(tied), at_once):
        some = tied[start : start + at_once]
        (ads[some], scores[some]), _ = found(some, depths[-1])
    return ads, scores


def best_first(ads: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> TopK:
    """Return the k best of ``ads`` (queries, n) with their ``scores``, in the order of a search."""
    if (scores[:, 1:] > scores[:, :-1]).any():
        order = np.argsort(-scores, axis=1, kind="stable")
        ads, scores = np.take_along_axis(ads, order, 1), np.take_along_axis(scores, order, 1)
    best = ads[:, :k].copy(), scores[:, :k].copy()
    tied = np.flatnonzero(_are_equal(scores[:, : k + 1]).any(axis=1))
    if len(tied):  # few of the queries, as a rule
        rank = np.cumsum(~_are_equal(scores[tied]), axis=1)
        rank = np.pad(rank, [(0, 0), (1, 0)])
        order = np.lexsort((mix(ads[tied]), rank), axis=1)[:, :k]
        best[0][tied] = np.take_along_axis(ads[tied], order, 1)
    return best


def _are_equal(scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Flag the scores (queries, n - 1), best first, that equal the one before."""
    before, after = scores[:, :-1], scores[:, 1:]
    with np.errstate(invalid="ignore"):  # of two that are infinite
        return (before - after < EQUAL) & np.isfinite(after)


def merge_topk(parts: list[TopK], k: int) -> TopK:
    """Merge the results of searches over disjoint sets of ads into the k best of each query."""
    ads, scores = (np.concatenate(of_parts, axis=1) for of_parts in zip(*parts, strict=True))
    return best_first(ads, scores, k)


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


def keep_sample(
    blocks: Iterable[tuple[int, TopK]], sample: Int64s, found: Int64s
) -> Iterator[tuple[int, TopK]]:
    """Pass on blocks, and keep in ``found`` (n, k) the ads of the queries ``sample`` (n,)."""
    for start, best in blocks:
        inside = (sample >= start) & (sample < start + len(best[0]))
        found[inside] = best[0][sample[inside] - start]
        yield start, best


class TorchIndex:
    """All ads on one device, searched as faiss's ``IndexFlatIP``, which may not know the GPU."""

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
            best, ads = best_Bk.cpu().numpy(), ads_Bk.cpu().numpy()
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


SCANNED: tuple[Any, ...] = (TorchIndex,)
"""Indexes that can be searched deeper without finding others."""
if faiss is not None:
    SCANNED = (TorchIndex, faiss.IndexFlat, faiss.IndexIVF)
