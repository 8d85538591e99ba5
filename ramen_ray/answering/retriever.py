"""A retriever: texts in, ads out."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from .ads import Ads
from .encoding import FEW_QUERIES, Embeddings, QueryEncoder
from .ranking import Flags, TopK, search_index
from .requests import (
    RefusedError,
    check_limits,
    check_numbers,
    check_size,
    find_error,
    plain,
    queries_of,
)

INDEX = "index.faiss"
# of one request, which is answered whole and in memory
MAX_ANSWER_BYTES = 16_000_000
MAX_SECONDS = 30
QUERIES_PER_ANSWER = 256
MOST = 2.0  # above any score, and what float32 can hold

Search = Callable[[Embeddings, int, Flags | None], TopK]
"""Finds the numbers of each query's k best ads among those flagged, -1 after the last."""


class Retriever:
    """Finds the ads whose vectors are nearest to those of queries.

    Attributes:
        ads: ids, texts and columns to filter by.
        index: of faiss, with a row for each ad; None if another process has it.
        embed: returns the queries' vectors (queries, D), unit norm.
        refusal: the class of the error that :meth:`answer` raises.
        error_of: returns why a query cannot be answered, or None.
    """

    refusal = RefusedError
    error_of = staticmethod(find_error)

    def __init__(
        self, folder: str | Path, device: str | None = None, search: Search | None = None
    ) -> None:
        """Load what a run wrote into ``folder``; by default onto a GPU if there is one.

        A ``search`` takes the place of the index, which is then not loaded.
        """
        folder = Path(folder)
        self.index: Any = None if search else faiss.read_index(str(folder / INDEX))
        self._search = search or self._search_here
        self.ads = Ads(folder)
        self.embed = QueryEncoder(folder, device)
        self.num_threads = faiss.omp_get_max_threads()

    def answer(
        self,
        texts: Sequence[Any],
        top_k: int = 10,
        filter: Mapping[str, Any] | None = None,
        min_score: float | None = None,
        at_most: Mapping[str, int] | None = None,
        columns: Sequence[str] = (),
    ) -> pa.Table:
        """Answer every query with its ``top_k`` best ads.

        Args:
            texts: the queries; one that is no text has an error in its row.
            top_k: ads per query; fewer if fewer match.
            filter: by column the value that ads must have, or a list of which they must have one.
            min_score: the lowest score of an ad.
            at_most: by column, how many of a query's ads may have one value of it.
            columns: those whose values are returned with each ad.

        Returns:
            A row per query with ``ad_ids``, ``ads`` (their texts) and ``scores``, lists with the
            best first; ``doubt``: why the answer may be a bad one, or null; ``columns``, if any are
            asked for: by name the ads' values; and ``error``: why there is no answer, or null.

        Raises:
            RefusedError: the request asks for too much, or a value is not what it must be.
        """
        check_numbers(top_k, min_score, len(self.ads))
        if not isinstance(filter, Mapping | None):
            raise RefusedError(f"filter is {filter!r}; give values by column")
        if not isinstance(columns, list | tuple):
            raise RefusedError(f"columns is {columns!r}; give a list of names")
        at_most = {} if at_most is None else at_most
        check_limits(at_most)
        self.ads.check_columns([*at_most, *columns])
        among = self.ads.matching(filter) if filter else None
        least = -np.inf if min_score is None else max(min(min_score, MOST), -MOST)
        errors = [find_error(text) for text in texts]
        asked = [text for text, error in zip(texts, errors, strict=True) if error is None]
        check_size(len(errors), sum(map(len, asked)), top_k)
        if filter and among is not None and not among.any():
            errors = [error or self.ads.why_none(filter) for error in errors]
            asked = []
        doubts = list[str | None]()
        results = list[TopK]()
        num_bytes = 0
        started = time.monotonic()
        for start in range(0, len(asked), QUERIES_PER_ANSWER):
            tokens = self.embed.tokenize(asked[start : start + QUERIES_PER_ANSWER])
            rows, scores = self.best(self.embed.vectors(tokens), top_k, among, at_most)
            doubts += map(self.embed.doubt, tokens, scores[:, 0].tolist())
            rows[scores < least] = -1
            results.append((rows, scores))
            num_bytes += self.ads.num_bytes(rows[rows >= 0], columns)
            _check_cost(num_bytes, time.monotonic() - started)
        none = np.full((0, top_k), -1), np.zeros((0, top_k), dtype=np.float32)
        rows, scores = (np.concatenate(parts) for parts in zip(none, *results, strict=True))
        return self.ads.spell_out(errors, rows, scores, doubts, columns)

    def answer_table(self, table: Any, **options: Any) -> pa.Table:
        """:meth:`answer` the queries in the first column of a table of pandas.

        NumPy's values, and arrays of one text, which MLflow makes of a list of objects, are taken
        as Python's; options that are None, as left out.
        """
        given = {name: plain(value) for name, value in options.items() if value is not None}
        return self.answer(queries_of(table), **given)

    def best(
        self, vectors: Embeddings, k: int, among: Flags | None, at_most: Mapping[str, int]
    ) -> TopK:
        """Return what :meth:`nearest` does, but at most so many ads with one value of a column."""
        if not at_most:
            return self.nearest(vectors, k, among)
        return self.ads.topk_with_limits(
            lambda queries, depth: self.nearest(vectors[queries], depth, among),
            len(vectors),
            k,
            at_most,
        )

    def nearest(self, vectors: Embeddings, k: int, among: Flags | None = None) -> TopK:
        """Return the rows (queries, k) of the best ads, -1 after the last, and their scores.

        ``among`` flags the ads (ads,) to search.
        """
        numbers, scores = self._search(vectors, k, among)
        return self.ads.rows_of(numbers), scores

    def _search_here(self, vectors: Embeddings, k: int, among: Flags | None) -> TopK:
        faiss.omp_set_num_threads(1 if len(vectors) <= FEW_QUERIES else self.num_threads)
        return search_index(self.index, vectors, k, self.ads.numbers, among)


def _check_cost(num_bytes: int, seconds: float) -> None:
    if num_bytes > MAX_ANSWER_BYTES:
        raise RefusedError(
            f"the answers have more than {MAX_ANSWER_BYTES // 1_000_000} MB; send fewer queries at "
            f"once, or lower top_k"
        )
    if seconds > MAX_SECONDS:
        raise RefusedError(
            f"the request takes more than {MAX_SECONDS} s; send fewer queries at once"
        )
