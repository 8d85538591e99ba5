"""Shards: consecutive ads, few enough for one process to hold them in an index of their own.

An exact search of shards finds the same ads as one search of all, with the same scores to the bit.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from ramen_ray.answering.ads import numbers_of
from ramen_ray.answering.encoding import Embeddings
from ramen_ray.answering.ranking import Flags, TopK, merge_topk, search_index
from ramen_ray.answering.retriever import Search
from ramen_ray.data.arrays import map_array
from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.method.retrieval.index import (
    BulkKind,
    choose_bulk_kind,
    filled_index,
    search_wider,
    short_code_bytes,
    with_rows_only,
)
from ramen_ray.method.retrieval.search import ADS_PER_PRODUCT, Ids

BYTES_PER_NUMBER = 4
SEARCHES_AT_ONCE = 4  # in shards that other processes hold


def shard_ranges(num_ads: int, bytes_per_ad: float, gb_per_shard: float) -> list[range]:
    """Cut ads into ranges of about equal size, of at least ADS_PER_PRODUCT ads; one if all fit.

    An ad takes ``bytes_per_ad`` in an index; a process may hold ``gb_per_shard`` GB of ads.
    """
    num_products = max(math.ceil(num_ads / ADS_PER_PRODUCT), 1)
    most = max(int(gb_per_shard * 1e9 / bytes_per_ad) // ADS_PER_PRODUCT, 1)
    size = math.ceil(num_products / math.ceil(num_products / most)) * ADS_PER_PRODUCT
    return [range(start, min(start + size, num_ads)) for start in range(0, num_ads, size)]


@dataclass(frozen=True)
class EmbeddedShard:
    """Ads whose embeddings are in a file."""

    file: Path  # an ``.npy`` file of embeddings float32, which all machines can reach
    rows: range  # the rows of the file that are the shard's ads
    first: int  # the number of the shard's first ad
    kind: BulkKind = "flat"  # how they are indexed
    effort: int = 1  # short codes look at so many times the cells and candidates
    ids: Path | None = None  # an ``.npy`` file (ads,) of all shards' ads; None if numbers are ids

    def __str__(self) -> str:
        return f"ads {self.first} to {self.first + len(self.rows)} in {self.file}"

    @property
    def num_bytes(self) -> int:
        """Size of the embeddings, or of their codes."""
        dim = int(map_array(self.file).shape[1])
        return round(_bytes_per_ad(dim, self.kind) * len(self.rows))

    def open(self) -> tuple[Any, Ids]:
        """Index the ads; returns the index, and the ids of its rows."""
        embeddings = map_array(self.file)[self.rows.start : self.rows.stop]
        ids: Ids = self.first
        if self.ids is not None:
            ids = map_array(self.ids)[self.first : self.first + len(self.rows)]
        if self.kind == "flat":
            return filled_index("flat", embeddings), ids
        # Short codes take long to make, so their index is kept.
        kept = self.file.with_name(f"{self.file.stem}-{self.rows.start}.faiss")
        if not kept.exists():
            with whole_file(kept) as aside:
                faiss.write_index(filled_index(self.kind, embeddings), str(aside))
        index = faiss.read_index(str(kept))
        search_wider(index, self.effort)
        return index, ids


def embedded_shards(
    file: Path,
    first_row: int,
    gb_per_shard: float,
    is_exact: bool = True,
    effort: int = 1,
    ids: Path | None = None,
) -> list[EmbeddedShard]:
    """Cut the ads whose embeddings are the rows of ``file`` from ``first_row`` on into shards.

    Unless the search is to be exact, many ads in a shard get an index of short codes. See
    :class:`EmbeddedShard` and :func:`shard_ranges`.
    """
    num_rows, dim = map_array(file).shape
    whole: BulkKind = "flat" if is_exact else "short_codes"
    return [
        EmbeddedShard(
            file,
            range(first_row + ads.start, first_row + ads.stop),
            ads.start,
            "flat" if is_exact else choose_bulk_kind(len(ads)),
            effort,
            ids,
        )
        for ads in shard_ranges(num_rows - first_row, _bytes_per_ad(dim, whole), gb_per_shard)
    ]


def _bytes_per_ad(dim: int, kind: BulkKind) -> float:
    return dim * BYTES_PER_NUMBER if kind == "flat" else short_code_bytes(dim)


@dataclass(frozen=True)
class IndexShard:
    """Some ads of a retriever's index, a file that all machines can reach."""

    file: Path
    rows: range
    num_bytes: int

    def __str__(self) -> str:
        return f"ads {self.rows.start} to {self.rows.stop} in {self.file}"

    def open(self) -> tuple[Any, Ids]:
        """Make an index of the ads; returns it, and their numbers."""
        whole = faiss.read_index(str(self.file), faiss.IO_FLAG_MMAP_IFC)
        numbers = numbers_of(self.file.parent, whole.ntotal)
        if len(self.rows) == whole.ntotal:
            return faiss.read_index(str(self.file)), numbers
        # Cells and codes stay, so that it finds what the whole one does; a graph is made anew.
        rows = np.arange(self.rows.start, self.rows.stop)
        return with_rows_only(whole, rows), numbers[rows]


class HeldShard:
    """A shard of a retriever's index in memory."""

    def __init__(self, shard: IndexShard) -> None:
        self._index, self._numbers = shard.open()
        self._rows = slice(shard.rows.start, shard.rows.stop)

    def search(self, vectors: Embeddings, k: int, among: Flags | None) -> TopK:
        """Find the shard's best ads, as a Search does; ``among`` flags ads of all shards."""
        flags = None if among is None else among[self._rows]
        return search_index(self._index, vectors, k, self._numbers, flags)


def search_of(shards: Sequence[Search]) -> Search:
    """Return the search of all shards at the same time, each by a Search of its own."""
    threads = ThreadPoolExecutor(SEARCHES_AT_ONCE * len(shards))

    def search(vectors: Embeddings, k: int, among: Flags | None) -> TopK:
        topks = threads.map(lambda shard: shard(vectors, k, among), shards)
        return merge_topk([*topks], k)

    return search


def index_shards(file: Path, gb_per_shard: float) -> list[IndexShard]:
    """Cut the index of a retriever into shards of at most about ``gb_per_shard`` GB each."""
    num_ads, bytes_per_ad = _size_of(file)
    return [
        IndexShard(file, rows, round(len(rows) * bytes_per_ad))
        for rows in shard_ranges(num_ads, bytes_per_ad, gb_per_shard)
    ]


def index_shard(file: Path, number: int, count: int) -> IndexShard:
    """Return a shard of the index of a retriever, cut into ``count`` of about equal size.

    Of an index of a few thousand ads some shards may be empty.
    """
    num_ads, bytes_per_ad = _size_of(file)
    num_products = math.ceil(num_ads / ADS_PER_PRODUCT)
    start, stop = (
        min(num_products * place // count * ADS_PER_PRODUCT, num_ads)
        for place in (number, number + 1)
    )
    return IndexShard(file, range(start, stop), round((stop - start) * bytes_per_ad))


def _size_of(file: Path) -> tuple[int, float]:
    """Return how many ads an index has, and the bytes of each."""
    num_ads = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC).ntotal
    return num_ads, file.stat().st_size / num_ads
