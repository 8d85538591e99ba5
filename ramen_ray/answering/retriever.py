"""A retriever: texts in, ads out."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from .ads import Ads
from .encoding import FEW_QUERIES, Embeddings, QueryEncoder
from .ranking import Flags, TopK, search_index
from .requests import RefusedError, check_numbers, check_size, find_error

INDEX = "index.faiss"
# of one request, which is answered whole and in memory
MAX_ANSWER_BYTES = 16_000_000
MAX_SECONDS = 30
BYTES_BESIDE_TEXTS = 30  # of a score, and what is around it and the texts in JSON
QUERIES_PER_ANSWER = 256
MOST = 2.0  # above any score, and what float32 can hold


class Retriever:
    """Finds the ads whose vectors are nearest to those of queries.

    Attributes:
        ads: ids, texts and columns to filter by.
        index: of faiss, with a row for each ad.
        embed: returns the queries' vectors (queries, D), unit norm.
        refusal: the class of the error that :meth:`answer` raises.
        error_of: returns why a query cannot be answered, or None.
    """

    refusal = RefusedError
    error_of = staticmethod(find_error)

    def __init__(self, folder: str | Path, device: str | None = None) -> None:
        """Load what a run wrote into ``folder``; by default onto a GPU if there is one."""
        folder = Path(folder)
        self.index = faiss.read_index(str(folder / INDEX))
        self.ads = Ads(folder)
        self.embed = QueryEncoder(folder, device)
        self.num_threads = faiss.omp_get_max_threads()

    def answer(
        self,
        texts: Sequence[Any],
        top_k: int = 10,
        filter: Mapping[str, Any] | None = None,
        min_score: float | None = None,
    ) -> pa.Table:
        """Answer every query with its ``top_k`` best ads.

        Args:
            texts: the queries; one that is no text has an error in its row.
            top_k: ads per query; fewer if fewer match.
            filter: by column the value that ads must have, or a list of which they must have one.
            min_score: the lowest score of an ad.

        Returns:
            A row per query with ``ad_ids``, ``ads`` (their texts) and ``scores``, lists with the
            best first, and ``error``: why there is no answer, or null.

        Raises:
            RefusedError: the request asks for too much, or a value is not what it must be.
        """
        check_numbers(top_k, min_score, len(self.ads))
        if not isinstance(filter, Mapping | None):
            raise RefusedError(f"filter is {filter!r}; give values by column")
        among = self.ads.matching(filter) if filter else None
        least = -np.inf if min_score is None else max(min(min_score, MOST), -MOST)
        errors = [find_error(text) for text in texts]
        asked = [text for text, error in zip(texts, errors, strict=True) if error is None]
        check_size(len(errors), sum(map(len, asked)), top_k)
        rows, scores = self._within_limits(asked, top_k, among, least)
        return self.ads.spell_out(errors, rows, scores)

    def nearest(self, vectors: Embeddings, k: int, among: Flags | None = None) -> TopK:
        """Return the rows (queries, k) of the best ads, -1 after the last, and their scores.

        ``among`` flags the ads (ads,) to search.
        """
        faiss.omp_set_num_threads(1 if len(vectors) <= FEW_QUERIES else self.num_threads)
        numbers, scores = search_index(self.index, vectors, k, self.ads.numbers, among)
        return self.ads.rows_of(numbers), scores

    def _within_limits(
        self, texts: list[str], top_k: int, among: Flags | None, least: float
    ) -> TopK:
        """Search block by block, unless this takes too long or the answers grow too large."""
        started = time.monotonic()
        rows = np.full((len(texts), top_k), -1)
        scores = np.zeros(rows.shape, dtype=np.float32)
        num_bytes = 0
        for start in range(0, len(texts), QUERIES_PER_ANSWER):
            block = slice(start, start + QUERIES_PER_ANSWER)
            best, scores[block] = self.nearest(self.embed(texts[block]), top_k, among)
            best[scores[block] < least] = -1
            rows[block] = best
            num_bytes += int((self.ads.lengths[best[best >= 0]] + BYTES_BESIDE_TEXTS).sum())
            if num_bytes > MAX_ANSWER_BYTES:
                raise RefusedError(
                    f"the answers have more than {MAX_ANSWER_BYTES // 1_000_000} MB; send fewer "
                    f"queries at once, or lower top_k"
                )
            if time.monotonic() > started + MAX_SECONDS:
                raise RefusedError(
                    f"the request takes more than {MAX_SECONDS} s; send fewer queries at once"
                )
        return rows, scores
