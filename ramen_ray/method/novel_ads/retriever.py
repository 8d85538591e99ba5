"""Retrievers with a combiner: a folder ``combiner/`` beside the index of combined vectors."""

from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np

from ramen_ray.method.novel_ads.neighbours import Vectors
from ramen_ray.method.novel_ads.representation import (
    COMBINER_FOLDER,
    CombinedAds,
    open_combined_ads,
)
from ramen_ray.method.retrieval.index import IndexKind, filled_index
from ramen_ray.method.retrieval.retriever_folder import INDEX


def use_combiner(folder: Path, combiner: Path, embeddings: Vectors, kind: IndexKind) -> None:
    """Give a retriever a combiner, and an index of the combined vectors of its ads.

    All vectors are divided by the length of the longest, as indexes expect none above 1.

    Args:
        folder: the retriever.
        combiner: what :meth:`CombinedAds.save` wrote.
        embeddings: (ads, D) the embeddings of its ads' texts.
        kind: the kind of index.
    """
    combined = open_combined_ads(combiner)
    vectors = combined.represent(embeddings, combined.seen.rows_of(np.arange(len(embeddings))))
    longest = float(np.linalg.norm(vectors, axis=1).max())
    replace(combined, scale=combined.scale * longest).save(folder / COMBINER_FOLDER)
    vectors /= np.float32(longest)
    faiss.write_index(filled_index(kind, vectors), str(folder / INDEX))


def combiner_of(folder: Path) -> CombinedAds | None:
    """Open a retriever's combiner; None if it has none."""
    combiner = folder / COMBINER_FOLDER
    return open_combined_ads(combiner) if combiner.is_dir() else None
