"""The index that a retriever searches: exact for few ads, HNSW for more, IVF-PQ for most.

Another kind, of short codes, is for millions of queries at once. All rank by the inner product of
unit-norm embeddings.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import faiss
import numpy as np
from faiss.contrib.inspect_tools import get_invlist
from numpy.typing import NDArray

IndexKind = Literal["flat", "half", "hnsw", "ivf_pq"]
BulkKind = Literal["flat", "short_codes"]

MOST_FLAT_ADS = 50_000
MOST_HNSW_ADS = 2_000_000
FEWEST_IVF_PQ_ADS = 10_000  # from which faiss can learn the 256 codes of a sub-quantiser

HNSW_LINKS = 32
HNSW_CANDIDATES_BUILDING = 100
HNSW_CANDIDATES_SEARCHING = 256
DIMENSIONS_PER_CODE = 2
SAMPLED_ADS_PER_CODE = 64
SAMPLED_ADS_PER_CELL = 40
SHARE_OF_CELLS_SEARCHED = 1 / 16
FEWEST_CELLS_SEARCHED = 64

DIMENSIONS_PER_SHORT_CODE = 4
SHORT_CODE_CELLS_SEARCHED = 32
# A query looks at fewer cells if there are more ads in them, so that its time does not grow.
SHORT_CODES_SEARCHED = 32_768
# Ads that short codes find, of four bits each, for each one that is left by codes of a byte.
CANDIDATES_PER_ANSWER = 8

ADS_PER_BLOCK = 65_536


def choose_kind(num_ads: int) -> IndexKind:
    """Choose by size: exact search, then HNSW, then IVF-PQ, where HNSW needs too much memory."""
    if num_ads <= MOST_FLAT_ADS:
        return "flat"
    return "hnsw" if num_ads <= MOST_HNSW_ADS else "ivf_pq"


def with_rows_only(index: Any, rows: NDArray[np.int64]) -> Any:
    """Return an index of ``rows``, which ascend, of another; they get the numbers 0, 1, ...

    An index with cells is changed in memory, and its vectors stay compressed, with approximate
    scores.
    """
    if isinstance(index, faiss.IndexIVF):
        _keep_in_cells(index, rows)
        return index
    has_graph = isinstance(index, faiss.IndexHNSW)  # its links lead through all rows
    scanned: IndexKind = "half" if isinstance(index, faiss.IndexScalarQuantizer) else "flat"
    fewer = new_index("hnsw" if has_graph else scanned, index.d, len(rows))
    for start in range(0, len(rows), ADS_PER_BLOCK):
        fewer.add(index.reconstruct_batch(rows[start : start + ADS_PER_BLOCK]))
    return fewer


def _keep_in_cells(index: Any, rows: NDArray[np.int64]) -> None:
    kept = faiss.ArrayInvertedLists(index.nlist, index.code_size)
    for cell in range(index.nlist):
        ids, codes = get_invlist(index.invlists, cell)
        numbers = np.searchsorted(rows, ids)
        stays = np.append(rows, -1)[numbers] == ids
        numbers = numbers[stays]
        codes = np.ascontiguousarray(codes[stays])
        if len(numbers):
            pointers = faiss.swig_ptr(numbers), faiss.swig_ptr(codes)
            kept.add_entries(cell, len(numbers), *pointers)
    replace_cells(index, kept)
    index.ntotal = len(rows)


def choose_bulk_kind(num_ads: int) -> BulkKind:
    """Choose by size for a search of millions of queries."""
    return "flat" if num_ads <= MOST_FLAT_ADS else "short_codes"


def short_code_bytes(dim: int) -> float:
    """Return what an ad takes in an index of short codes: codes of both kinds, and an id."""
    return dim + dim / DIMENSIONS_PER_SHORT_CODE / 2 + 8


def new_index(kind: IndexKind | BulkKind, dim: int, num_ads: int) -> Any:
    """Make an empty index for about ``num_ads`` embeddings of width ``dim``, with its settings.

    One with cells must be trained before ads are added, see :func:`trained_index`.
    """
    codes, short_codes = (
        max(n for n in range(1, max(dim // width, 1) + 1) if dim % n == 0)
        for width in (DIMENSIONS_PER_CODE, DIMENSIONS_PER_SHORT_CODE)
    )
    cells = _num_cells(num_ads)
    recipe = {
        "flat": "Flat",
        "half": "SQfp16",
        "hnsw": f"HNSW{HNSW_LINKS}",
        "ivf_pq": f"IVF{cells},PQ{codes}np",
        "short_codes": f"IVF{cells},PQ{short_codes}x4fs,Refine(SQ8)",
    }
    index: Any = faiss.index_factory(dim, recipe[kind], faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = HNSW_CANDIDATES_BUILDING
        index.hnsw.efSearch = HNSW_CANDIDATES_SEARCHING
    elif kind == "ivf_pq":
        index.nprobe = max(round(cells * SHARE_OF_CELLS_SEARCHED), FEWEST_CELLS_SEARCHED)
        index.pq.cp.max_points_per_centroid = SAMPLED_ADS_PER_CODE
    elif kind == "short_codes":
        index.k_factor = CANDIDATES_PER_ANSWER
        by_codes = SHORT_CODES_SEARCHED * cells // max(num_ads, 1)
        searched = max(min(by_codes, SHORT_CODE_CELLS_SEARCHED), 1)
        faiss.downcast_index(index.base_index).nprobe = searched
        codes = faiss.downcast_index(index.refine_index).codes
        codes.resize(num_ads * dim)  # else it would double in size while it grows
        codes.resize(0)
    return index


def search_wider(index: Any, times: int) -> None:
    """Let an index of short codes look at so many times the cells and candidates."""
    if isinstance(index, faiss.IndexRefine):
        index.k_factor *= times
        faiss.downcast_index(index.base_index).nprobe *= times


def trained_index(
    kind: IndexKind | BulkKind,
    dim: int,
    num_ads: int,
    embed: Callable[[NDArray[np.int64]], NDArray[np.float32]],
) -> Any:
    """Make an index that ads can be added to; it learns from a sample that ``embed`` returns."""
    index = new_index(kind, dim, num_ads)
    if not index.is_trained:
        size = max(SAMPLED_ADS_PER_CELL * _num_cells(num_ads), FEWEST_IVF_PQ_ADS)
        index.train(embed(np.random.default_rng(0).permutation(num_ads)[:size]))
    return index


def filled_index(kind: IndexKind | BulkKind, embeddings: NDArray[np.float32]) -> Any:
    """Index ``embeddings`` (ads, D) float32, which may be mapped: only the index is in memory."""
    num_ads, dim = embeddings.shape
    index = trained_index(kind, dim, num_ads, lambda rows: embeddings[np.sort(rows)])
    for start in range(0, num_ads, ADS_PER_BLOCK):
        index.add(np.ascontiguousarray(embeddings[start : start + ADS_PER_BLOCK]))
    return index


def _num_cells(num_ads: int) -> int:
    return max(2 * math.isqrt(num_ads), 1)


def replace_cells(index: Any, lists: Any) -> None:
    """Give an index other lists of what is in its cells."""
    index.replace_invlists(lists, True)
    lists.this.disown()
