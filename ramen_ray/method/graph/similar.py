"""Similar texts: those whose embeddings are nearest to each text's, but not duplicates."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, UInt64s, best_of_each, hash_strings
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import Protocol

SPARE_NEIGHBOURS = 32  # that are searched, as the text itself and its duplicates are among them
MOST_ANCHORS = 1024
FEWER = "texts with fewer anchors, as most of their nearest are duplicates"
FOUND = "% of nearest texts found"
SAMPLED_TEXTS = 400  # whose nearest texts are searched exactly too, to measure what is found

Found = tuple[Int64s, NDArray[np.float32]]  # texts (texts, k), and cosines (texts, k); best first
Similar = tuple[Int64s, Int64s, NDArray[np.float32]]
"""Texts (n,), ascending, similar texts (n,), and their cosines (n,); best first for each text."""


@dataclass(frozen=True)
class SimilarSettings:
    """Which texts are similar enough, but not duplicates.

    Attributes:
        encoder: Encoder that measures similarity: a folder that training wrote, a pretrained
            folder, package:MODULE/FOLDER or a hub id; by default a bag of MiniLM's tokens, which
            has learnt nothing yet.
        top_k: Largest number of anchors of a node; below 1,024.
        min_similarity: Texts with a lower cosine are not linked.
        max_similarity: Texts with a higher cosine count as duplicates and are not linked, as are
            texts that differ only in case, white space or punctuation. Symbols such as + are no
            punctuation, but # is: C++ is not C, and C# is.
        max_length: Tokens of a text that an encoder reads.
        protocol: strict leaves out edges that join a held-out query to its answer; as-published
            keeps all.
    """

    encoder: str | None = None
    top_k: int = 5
    min_similarity: float = 0.3
    max_similarity: float = 0.95
    max_length: int = 32
    protocol: Protocol = "strict"

    def __post_init__(self) -> None:
        """Refuse settings that leave no edges."""
        if not 1 <= self.top_k < MOST_ANCHORS or self.max_length < 3:
            raise DatasetError(
                f"top_k must be at least 1 and below {MOST_ANCHORS}, and max_length at least 3"
            )
        if not 0 < self.min_similarity < self.max_similarity <= 1:
            raise DatasetError(
                f"min_similarity {self.min_similarity} must be above 0 and below "
                f"max_similarity {self.max_similarity}, which must be at most 1"
            )


def plain_hashes(texts: pa.StringArray) -> UInt64s:
    """Hash texts (n,) so that those that differ only in case, punctuation and space are equal."""
    # Marks (M) are, among others, the vowels of Hindi and Thai; + and $ are symbols (S).
    plain = pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\p{L}\p{M}\p{N}\p{S}]+", "")
    return hash_strings(plain)


def similar_by_embeddings(
    blocks: Iterable[tuple[int, Found]],
    plain: UInt64s,
    settings: SimilarSettings,
    counts: Counter[str],
) -> Iterator[Similar]:
    """Yield what is similar to some texts at a time.

    ``blocks`` are the first of consecutive texts, and their nearest. The :func:`plain_hashes` of
    all texts are ``plain`` (n,). ``counts`` gets, as FEWER, how many might have more beyond their
    nearest.
    """
    for start, (others, similarities) in blocks:
        texts = np.arange(start, start + len(others))
        kept = (similarities >= settings.min_similarity) & (similarities <= settings.max_similarity)
        kept &= plain[others] != plain[texts][:, None]
        are_few = kept.sum(axis=1) < settings.top_k
        are_few &= similarities[:, -1] >= settings.min_similarity
        counts[FEWER] += int(are_few.sum()) * (others.shape[1] < len(plain))
        sources = texts[np.nonzero(kept)[0]]
        linked = others[kept]
        cosines = similarities[kept]
        best, _ = best_of_each(sources, settings.top_k, -cosines, linked)
        yield sources[best], linked[best], cosines[best]
