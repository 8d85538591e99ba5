"""Shortlists: of the ads that were never clicked for a query, those that an encoder ranks first.

They are ANCE's hard negatives. Ads with the query's own text are left out, since training cannot
push them away: both have the same embedding. So are ads that training must not see (novel ads).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.hashing import HashIndex
from ramen_ray.data.store.mapped_files import map_new_array
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import (
    TopK,
    build_index,
    costs_too_much,
    drop_filtered,
    search,
    search_index,
    share_found,
)

QUERIES_PER_BLOCK = 1 << 14
SAMPLED_QUERIES = 1000
RECALL = "recall"


class Shortlists:
    """The ``.npy`` file of all train queries' shortlists, which is written block by block.

    It holds (train queries, size) int32 ads: what is left of the ``size`` nearest, best first,
    then -1.
    """

    def __init__(self, data: Prepared, size: int, file: Path) -> None:
        self.size = size
        self._clicks, self._hashes = data.clicks["train"], data.queries["train"].hashes
        self._same_text = HashIndex.from_hashes(data.ads.hashes)
        self._ad_ids = np.append(data.candidates("validation"), -1)  # search returns -1 for no ad
        self._lists = map_new_array(file, np.int32, (len(self._hashes), size))

    def write(self, rows: Int64s, found: TopK) -> None:
        """Write the shortlists of queries (n,), without their own ads and their own texts.

        What was ``found`` are their nearest (n, size), by number among the candidates.
        """
        dropped = zip(
            self._clicks.gather(rows), self._same_text.all(self._hashes[rows]), strict=True
        )
        pairs = np.stack([np.concatenate(parts) for parts in dropped], axis=1)
        ads, scores = found
        self._lists[rows] = drop_filtered((self._ad_ids[ads], scores), pairs, self.size)[0]

    def close(self) -> None:
        """Write what is still in memory."""
        self._lists.flush()


def write_shortlists(
    model: DualEncoder, data: Prepared, size: int, file: Path, use_bf16: bool = False
) -> dict[str, float]:
    """Search the ads for every train query, a batch at a time; see :class:`Shortlists`.

    Returns:
        ``recall`` of the search, measured on some queries, if an exact one would cost too much.
    """
    queries, ads = data.queries["train"], data.candidates("validation")
    embeddings, gpu = model.embed_texts(data.ads, ads, use_bf16), model.device.index
    is_exact = gpu is not None or not costs_too_much(len(queries), *embeddings.shape)
    if is_exact:
        index = build_index(embeddings, gpu)
    else:
        from ramen_ray.method.retrieval.index import choose_bulk_kind, filled_index  # need faiss

        index = filled_index(choose_bulk_kind(len(ads)), embeddings)
    shortlists = Shortlists(data, size, file)
    for start in range(0, len(queries), QUERIES_PER_BLOCK):
        rows = np.arange(start, min(start + QUERIES_PER_BLOCK, len(queries)))
        shortlists.write(
            rows, search_index(index, model.embed_texts(queries, rows, use_bf16), size)
        )
    shortlists.close()
    if is_exact:
        return {}
    sample = model.embed_texts(queries, sampled_queries(len(queries)), use_bf16)
    exact, _ = search(sample, embeddings, size)
    return {RECALL: share_found(search_index(index, sample, size)[0], exact)}


def sampled_queries(num_queries: int, most: int = SAMPLED_QUERIES) -> Int64s:
    """Return the rows of the queries, ascending, that recall is measured on."""
    drawn = np.random.default_rng(0).permutation(num_queries)[:most]
    return np.sort(drawn)


def open_shortlists(file: Path) -> NDArray[np.int32]:
    """Memory-map what :class:`Shortlists` wrote; processes on one machine share its pages."""
    return np.asarray(np.load(file, mmap_mode="r"))
