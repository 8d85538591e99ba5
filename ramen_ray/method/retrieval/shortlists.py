"""Shortlists: of the ads that were never clicked for a query, those that an encoder ranks first.

They are ANCE's hard negatives. Ads with the query's own text are left out, as both have the same
embedding, and so are ads that training must not see (novel ads).
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from ramen_ray.data.arrays import HashIndex, Int64s, map_new_array
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import (
    TopK,
    build_index,
    costs_too_much,
    drop_filtered,
    keep_sample,
    search,
    search_index,
    share_found,
)

QUERIES_PER_SEARCH = 1 << 14
SAMPLED_QUERIES = 1000
RECALL = "recall"


def write_shortlists(
    model: DualEncoder, data: Prepared, size: int, file: Path, use_bf16: bool = False
) -> dict[str, float]:
    """Search the ads for every train query, a batch at a time; see :func:`keep_shortlists`."""
    queries = data.queries["train"]
    ads = data.candidates("validation")
    embeddings = model.embed_texts(data.ads, ads, use_bf16)
    gpu = model.device.index
    is_exact = gpu is not None or not costs_too_much(len(queries), *embeddings.shape)
    if is_exact:
        index = build_index(embeddings, gpu)
    else:
        from ramen_ray.method.retrieval.index import choose_bulk_kind, filled_index  # need faiss

        index = filled_index(choose_bulk_kind(len(ads)), embeddings)

    def blocks() -> Iterator[tuple[int, TopK]]:
        for start in range(0, len(queries), QUERIES_PER_SEARCH):
            rows = np.arange(start, min(start + QUERIES_PER_SEARCH, len(queries)))
            yield start, search_index(index, model.embed_texts(queries, rows, use_bf16), size)

    def exact(sample: Int64s) -> TopK:
        return search(model.embed_texts(queries, sample, use_bf16), embeddings, size)

    return keep_shortlists(blocks(), data, size, file, None if is_exact else exact)


def keep_shortlists(
    blocks: Iterable[tuple[int, TopK]],
    data: Prepared,
    size: int,
    file: Path,
    exact: Callable[[Int64s], TopK] | None = None,
) -> dict[str, float]:
    """Write an ``.npy`` file of all train queries' shortlists (train queries, size) int32.

    A row has the ``size`` nearest ads, best first, without those that the query clicked or that
    have its text; then -1. ``blocks`` of a search begin at a query, and name ads by their numbers
    among the candidates. Returns the ``recall``, if ``exact`` searches a sample of queries.
    """
    clicks = data.clicks["train"]
    hashes = data.queries["train"].hashes
    same_text = HashIndex.from_hashes(data.ads.hashes)
    ad_ids = np.append(data.candidates("validation"), -1)  # search returns -1 for no ad
    lists = map_new_array(file, np.int32, (len(hashes), size))
    sample = sampled_queries(len(hashes))
    of_sample = np.full((len(sample), size), -1)
    for start, (ads, scores) in keep_sample(blocks, sample, of_sample):
        rows = np.arange(start, start + len(ads))
        dropped = zip(clicks.gather(rows), same_text.all(hashes[rows]), strict=True)
        pairs = np.stack([np.concatenate(parts) for parts in dropped], axis=1)
        lists[rows] = drop_filtered((ad_ids[ads], scores), pairs, size)[0]
    lists.flush()
    return {} if exact is None else {RECALL: share_found(of_sample, exact(sample)[0])}


def sampled_queries(num_queries: int, most: int = SAMPLED_QUERIES) -> Int64s:
    """Return the rows of the queries, ascending, that recall is measured on."""
    drawn = np.random.default_rng(0).permutation(num_queries)[:most]
    return np.sort(drawn)
