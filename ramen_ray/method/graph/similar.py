"""Similar texts: those whose embeddings are nearest to each text's, but not duplicates."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, UInt64s, best_of_each
from ramen_ray.data.leaks import Protocol
from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.store.dataset import DatasetError

SPARE_NEIGHBOURS = 16
MAX_NEIGHBOURS = 1024  # of a text, itself among them, however many are duplicates
GIVEN_UP = f"texts with fewer anchors, as most of their {MAX_NEIGHBOURS:,} nearest are duplicates"
FOUND = "% of nearest texts found"
SAMPLED_TEXTS = 400  # whose nearest texts are searched exactly too, to measure what is found
DEEPER = 8  # few rounds: an exact one indexes all texts again

Found = tuple[Int64s, NDArray[np.float32]]  # texts (texts, k), and cosines (texts, k); best first
Similar = tuple[Int64s, Int64s, NDArray[np.float32]]
"""Texts (n,), ascending, similar texts (n,), and their cosines (n,); best first for each text."""
SearchTexts = Callable[[Int64s | range, int], Iterator[tuple[Int64s, Found]]]
"""Finds the k texts nearest to each of some texts; yields blocks of these, in any order."""


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
        protocol: strict leaves out edges that join a held-out query to its answer, unclicked also
            those that repeat a train click; as-published keeps all.
    """

    encoder: str | None = None
    top_k: int = 5
    min_similarity: float = 0.3
    max_similarity: float = 0.95
    max_length: int = 32
    protocol: Protocol = "strict"

    def __post_init__(self) -> None:
        """Refuse settings that leave no edges."""
        if not 1 <= self.top_k < MAX_NEIGHBOURS or self.max_length < 3:
            raise DatasetError(
                f"top_k must be at least 1 and below {MAX_NEIGHBOURS}, and max_length at least 3"
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
    find: SearchTexts, plain: UInt64s, settings: SimilarSettings, counts: Counter[str]
) -> Iterator[Similar]:
    """Yield what is similar to some texts at a time; searches deeper if duplicates fill the top.

    ``find`` searches the embeddings of all texts, whose :func:`plain_hashes` are ``plain`` (n,).
    ``counts`` gets, as GIVEN_UP, how many might have more beyond their MAX_NEIGHBOURS.
    """
    texts: Int64s | range = range(len(plain))
    k = settings.top_k + SPARE_NEIGHBOURS
    while len(texts):
        again = [np.empty(0, dtype=np.int64)]
        for rows, (others, similarities) in find(texts, min(k, len(plain), MAX_NEIGHBOURS)):
            kept = (similarities >= settings.min_similarity) & (
                plain[others] != plain[rows][:, None]
            )
            kept &= similarities <= settings.max_similarity
            done = kept.sum(axis=1) >= settings.top_k
            done |= similarities[:, -1] < settings.min_similarity
            if k >= min(len(plain), MAX_NEIGHBOURS):
                if len(plain) > MAX_NEIGHBOURS:
                    counts[GIVEN_UP] += int((~done).sum())
                done[:] = True
            kept &= done[:, None]
            sources = rows[np.nonzero(kept)[0]]
            linked = others[kept]
            cosines = similarities[kept]
            best, _ = best_of_each(sources, settings.top_k, -cosines, linked)
            yield sources[best], linked[best], cosines[best]
            again.append(rows[~done])
        texts = np.sort(np.concatenate(again))
        k = DEEPER * k
