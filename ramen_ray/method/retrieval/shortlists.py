"""Shortlists: of the ads that were never clicked for a query, those that an encoder ranks first.

They are ANCE's hard negatives. Ads with the query's own text are left out, since training cannot
push them away: both have the same embedding. So are ads that training must not see (novel ads).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.hashing import HashIndex
from ramen_ray.data.store.mapped_files import map_new_array
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import build_index, drop_filtered, search_index

QUERIES_PER_BLOCK = 1 << 14


def write_shortlists(
    model: DualEncoder, data: Prepared, size: int, file: Path, use_bf16: bool = False
) -> None:
    """Search the ads for every train query, a batch at a time; drop its ads and its own text.

    Writes (train queries, size) int32 ads for ``np.load``: what is left of the ``size`` nearest,
    best first, then -1.
    """
    queries, clicks, ads = (
        data.queries["train"],
        data.clicks["train"],
        data.candidates("validation"),
    )
    index = build_index(model.embed_texts(data.ads, ads, use_bf16), model.device.index)
    same_text = HashIndex.from_hashes(data.ads.hashes)
    ad_ids = np.append(ads, -1)  # search returns -1 for no ad
    shape = (len(queries), size)
    shortlists = map_new_array(file, np.int32, shape)
    for start in range(0, len(queries), QUERIES_PER_BLOCK):
        rows = np.arange(start, min(start + QUERIES_PER_BLOCK, len(queries)))
        embedded = model.embed_texts(queries, rows, use_bf16)
        found, scores = search_index(index, embedded, size)
        dropped = zip(clicks.gather(rows), same_text.all(queries.hashes[rows]), strict=True)
        pairs = np.stack([np.concatenate(parts) for parts in dropped], axis=1)
        shortlists[rows] = drop_filtered((ad_ids[found], scores), pairs, size)[0]
    shortlists.flush()


def open_shortlists(file: Path) -> NDArray[np.int32]:
    """Memory-map what :func:`write_shortlists` wrote; processes on one machine share its pages."""
    return np.asarray(np.load(file, mmap_mode="r"))
