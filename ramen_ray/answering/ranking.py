"""The k most similar ads of each query in an index, equally similar ones in a fixed shuffle.

All searches break ties by hashes of ids, so that no ad gains by its place in a table.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import faiss
except ImportError:  # training has an exact index that needs none
    faiss = None

TopK = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Ads (queries, k), -1 after the last, and similarities (queries, k), -inf there; best first."""
Ids = NDArray[np.int64] | int  # the ids (rows,) of an index's rows, or the first of consecutive ids
Flags = NDArray[np.bool_]

QUERIES_PER_PASS = 1024
SPARE = 8  # ads that are searched besides the k
MOST_EQUAL = 1024  # the same, once ads beyond the k-th may equal it
MOST_SEARCHED = 100_000  # of all, if still more may equal it
EQUAL = np.float32(1e-6)
"""Scores that differ by less count as equal: rounding makes those of one text differ."""
SCORES_AT_ONCE = 1 << 24
MOST_SCANNED = 50_000  # of so few ads that are flagged, as of a flat index, none is missed


def search_index(
    index: Any,
    query_embeddings: NDArray[np.float32],
    k: int,
    ids: Ids = 0,
    among: Flags | None = None,
) -> TopK:
    """Find each query's k most similar ads of an index, of faiss or torch, of rows from 0 on.

    Hashes of ids also decide which of equally similar ads are among the k, except in faiss's graphs
    and on GPUs. So an exact search over parts finds the same ads as one over all. Queries (queries,
    D) are float32; ``ids`` are those of the index's rows. ``among`` flags the rows to search.
    """
    num_rows = index.ntotal
    how: dict[str, Any] = {}
    if among is not None and not among.all():
        num_rows = int(among.sum())
        index, how["params"] = _only(index, among, max(num_rows, 1))

    def find(queries: NDArray[np.float32], depth: int) -> TopK:
        scores, rows = index.search(queries, depth, **how)
        is_ad = rows >= 0
        scores[~is_ad] = -np.inf
        rows[is_ad] = rows[is_ad] + ids if isinstance(ids, int) else ids[rows[is_ad]]
        return rows, scores

    depths = [k + SPARE, k + MOST_EQUAL, max(min(num_rows, MOST_SEARCHED), 1)]
    if not _is_scanned(index):
        depths = [k]  # deeper, it would find others
    queries = np.ascontiguousarray(query_embeddings)
    starts = range(0, max(len(queries), 1), QUERIES_PER_PASS)
    passes = [
        _search_pass(find, queries[start : start + QUERIES_PER_PASS], k, depths) for start in starts
    ]
    ads, scores = (np.concatenate(parts) for parts in zip(*passes, strict=True))
    return ads, scores


def _only(index: Any, among: Flags, number: int) -> tuple[Any, Any]:
    """Return the index and the parameters that search the flagged rows only.

    Few rows are all compared; of more, about as many are looked at as without flags.
    """
    only = faiss.IDSelectorBitmap(np.packbits(among, bitorder="little"))
    is_few = number <= MOST_SCANNED
    if isinstance(index, faiss.IndexHNSW):
        if is_few:
            return faiss.downcast_index(index.storage), faiss.SearchParameters(sel=only)
        candidates = index.hnsw.efSearch * index.ntotal // number  # ignored ads are among them
        return index, faiss.SearchParametersHNSW(sel=only, efSearch=candidates)
    if isinstance(index, faiss.IndexIVF):
        cells = index.nlist if is_few else min(index.nprobe * index.ntotal // number, index.nlist)
        return index, faiss.SearchParametersIVF(sel=only, nprobe=cells)
    return index, faiss.SearchParameters(sel=only)


def _is_scanned(index: Any) -> bool:
    """Say whether an index can be searched deeper without finding others."""
    if faiss is None or not isinstance(index, faiss.Index):
        return True
    return isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer | faiss.IndexIVF)


Find = Callable[[NDArray[np.float32], int], TopK]
"""Finds ads at least so deep, by any rule for ties."""


def _search_pass(find: Find, queries: NDArray[np.float32], k: int, depths: list[int]) -> TopK:
    """Search deeper while more ads than were found may equal the k-th."""

    def search(rows: Any, depth: int) -> tuple[TopK, NDArray[np.int64]]:
        ads, scores = find(queries[rows], depth)
        is_tied = _are_equal(scores[:, [k - 1, -1]])[:, 0]
        return best_first(ads, scores, k), np.flatnonzero(is_tied & (depth < depths[-1]))

    (ads, scores), tied = search(slice(None), depths[0])
    if len(tied):  # the whole pass again: other rows beside a query may change its last bits
        (ads, scores), tied = search(slice(None), depths[1])
    at_once = max(SCORES_AT_ONCE // depths[-1], 1)
    for start in range(0, len(tied), at_once):
        rows = tied[start : start + at_once]
        (ads[rows], scores[rows]), _ = search(rows, depths[-1])
    return ads, scores


def best_first(ads: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> TopK:
    """Return the k best of ``ads`` (queries, n) with their ``scores``, in the order of a search."""
    if (scores[:, 1:] > scores[:, :-1]).any():
        order = np.argsort(-scores, axis=1, kind="stable")
        ads = np.take_along_axis(ads, order, 1)
        scores = np.take_along_axis(scores, order, 1)
    best = ads[:, :k].copy(), scores[:, :k].copy()
    tied = np.flatnonzero(_are_equal(scores[:, : k + 1]).any(axis=1))
    if len(tied):  # few of the queries, as a rule
        rank = np.cumsum(~_are_equal(scores[tied]), axis=1)
        rank = np.pad(rank, [(0, 0), (1, 0)])
        order = np.lexsort((_mixed(ads[tied]), rank), axis=1)[:, :k]
        best[0][tied] = np.take_along_axis(ads[tied], order, 1)
    return best


def merge_topk(parts: list[TopK], k: int) -> TopK:
    """Merge the results of searches over disjoint sets of ads into the k best of each query."""
    ads, scores = (np.concatenate(of_parts, axis=1) for of_parts in zip(*parts, strict=True))
    return best_first(ads, scores, k)


def _are_equal(scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Flag the scores (queries, n - 1), best first, that equal the one before."""
    before = scores[:, :-1]
    after = scores[:, 1:]
    with np.errstate(invalid="ignore"):  # of two that are infinite
        return (before - after < EQUAL) & np.isfinite(after)


def _mixed(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash ids by SplitMix64's finaliser, a bijection."""
    z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
