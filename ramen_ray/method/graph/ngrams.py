"""Similar texts by TF-IDF of character n-grams: all pairs, or those that share rare n-grams.

The products of all pairs are mostly those of n-grams that many texts have, and say little. So among
many texts, candidates are found by the rarer n-grams, and these get their true cosines.
"""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from ramen_ray.data.arrays import Int64s, UInt64s
from ramen_ray.method.graph.similar import FOUND, SAMPLED_TEXTS, Similar, SimilarSettings, best_of
from ramen_ray.method.retrieval.shortlists import sampled_queries

NGRAM_LENGTHS = (2, 4)
PRODUCTS_AT_ONCE = 1 << 24
MOST_PRODUCTS = 13 * 10**9  # a minute of a core
PRODUCTS_PER_TEXT = 32_768
CANDIDATES = 64
TEXTS_AT_ONCE = 1024


def ngram_vectors(texts: pa.StringArray) -> csr_matrix:
    """Return the TF-IDF (texts, n-grams) float32 of texts (n,) strings, unit norm."""
    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=NGRAM_LENGTHS, sublinear_tf=True, dtype=np.float32
    )
    return vectorizer.fit_transform(texts.to_pylist()).tocsr()


def similar_by_ngrams(
    vectors: csr_matrix, plain: UInt64s, settings: SimilarSettings, counts: Counter[str]
) -> Iterator[tuple[int, Similar]]:
    """Yield some texts' number, and what is similar to them; by all products if few.

    Args:
        vectors: (n, n-grams), as of :func:`ngram_vectors`.
        plain: (n,) of :func:`~ramen_ray.method.graph.similar.plain_hashes`.
        settings: which texts are similar.
        counts: gets, as FOUND, the recall in per cent of a search by rarer n-grams.
    """
    texts_with = np.bincount(vectors.indices, minlength=vectors.shape[1])
    every_text = np.arange(vectors.shape[0])
    if (texts_with.astype(np.float64) ** 2).sum() <= MOST_PRODUCTS:
        yield from _by_all_products(vectors, every_text, plain, settings)
        return
    rarer = _keep_columns(vectors, _are_rare(texts_with, len(every_text)))
    sample, sampled = sampled_queries(len(every_text), SAMPLED_TEXTS), []
    blocks = [every_text[i : i + TEXTS_AT_ONCE] for i in range(0, len(every_text), TEXTS_AT_ONCE)]

    def similar_to(some: Int64s) -> Similar:
        return _kept(*_nearest(vectors, rarer, some, plain), plain, settings)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for some, found in zip(blocks, threads.map(similar_to, blocks), strict=True):
            in_sample = np.isin(found[0], sample)
            sampled.append(found[0][in_sample] * len(every_text) + found[1][in_sample])
            yield len(some), found
    exact = [found for _, found in _by_all_products(vectors, sample, plain, settings)]
    wanted = np.concatenate([rows * len(every_text) + others for rows, others, _ in exact])
    counts[FOUND] = round(100 * float(np.isin(wanted, np.concatenate(sampled)).mean()))


def _are_rare(texts_with: Int64s, num_texts: int) -> NDArray[np.bool_]:
    """Mark the rarest n-grams (n,) that together take PRODUCTS_PER_TEXT of a text."""
    order = np.argsort(texts_with, kind="stable")
    products = np.cumsum(texts_with[order].astype(np.float64) ** 2)
    rare = np.zeros(len(texts_with), dtype=bool)
    rare[order[products <= PRODUCTS_PER_TEXT * num_texts]] = True
    return rare


def _keep_columns(vectors: csr_matrix, kept: NDArray[np.bool_]) -> csr_matrix:
    """Return the texts of each n-gram, as rows; those that are not ``kept`` (n,) have none."""
    rarer = vectors.multiply(kept.astype(np.float32)).tocsr()
    rarer.eliminate_zeros()
    return rarer.T.tocsr()


def _by_all_products(
    vectors: csr_matrix, texts: Int64s, plain: UInt64s, settings: SimilarSettings
) -> Iterator[tuple[int, Similar]]:
    columns = vectors.T.tocsr()
    rows_at_once = max(PRODUCTS_AT_ONCE // vectors.shape[0], 1)
    for start in range(0, len(texts), rows_at_once):
        some = texts[start : start + rows_at_once]
        product = (vectors[some] @ columns).tocoo()
        others = product.col.astype(np.int64)
        yield len(some), _kept(some[product.row], others, product.data, plain, settings)


def _nearest(
    vectors: csr_matrix, rarer: csr_matrix, texts: Int64s, plain: UInt64s
) -> tuple[Int64s, Int64s, NDArray[np.float32]]:
    """Return texts, others, and their cosines, of about CANDIDATES others of each of ``texts``."""
    parts = [(one.indptr, one.indices, one.data) for one in (vectors, rarer)]
    others, cosines = _candidates(*parts, texts, plain, vectors.shape)
    row, place = np.nonzero(others >= 0)
    return texts[row], others[row, place], cosines[row, place]


def _kept(
    rows: Int64s,
    others: Int64s,
    cosines: NDArray[np.float32],
    plain: UInt64s,
    settings: SimilarSettings,
) -> Similar:
    """Return the anchors of texts, from pairs (n,) and their cosines."""
    kept = (cosines >= settings.min_similarity) & (cosines <= settings.max_similarity)
    kept &= plain[rows] != plain[others]
    return best_of(rows[kept], others[kept], cosines[kept], settings)


@njit(nogil=True)
def _candidates(vectors, rarer, texts, plain, shape):  # type: ignore[no-untyped-def]
    """Return the others (n, CANDIDATES) nearest to texts (n,) by rarer n-grams, and true cosines.

    Others of equal ``plain`` do not count; -1 after the last.
    """
    starts, columns, values = vectors
    near, met = np.zeros(shape[0], np.float32), np.empty(shape[0], np.int64)
    of_text = np.zeros(shape[1], np.float32)
    others = np.full((len(texts), CANDIDATES), -1)
    cosines = np.zeros(others.shape, np.float32)
    for i in range(len(texts)):
        own = slice(starts[texts[i]], starts[texts[i] + 1])
        num_met = _meet(columns[own], values[own], rarer, near, met)
        near[met[:num_met]] *= plain[met[:num_met]] != plain[texts[i]]
        nearest = _nearest_of(near, met[:num_met])
        near[met[:num_met]] = 0
        of_text[columns[own]] = values[own]
        for j in range(len(nearest)):
            others[i, j] = nearest[j]
            for entry in range(starts[nearest[j]], starts[nearest[j] + 1]):
                cosines[i, j] += of_text[columns[entry]] * values[entry]
        of_text[columns[own]] = 0
    return others, cosines


@njit
def _meet(ngrams, values, rarer, near, met):  # type: ignore[no-untyped-def]
    """Add to ``near`` what a text's n-grams give; returns how many texts ``met`` now lists."""
    starts, texts, weights = rarer
    count = 0
    for own in range(len(ngrams)):
        for place in range(starts[ngrams[own]], starts[ngrams[own] + 1]):
            text = texts[place]
            if near[text] == 0:
                met[count] = text
                count += 1
            near[text] += values[own] * weights[place]
    return count


@njit
def _nearest_of(near, met):  # type: ignore[no-untyped-def]
    """Return those at most CANDIDATES of the texts ``met`` (n,) that are most ``near``, above 0."""
    nearness = near[met]
    least = np.float32(0)
    if len(met) > CANDIDATES:
        least = np.partition(nearness, len(met) - CANDIDATES)[len(met) - CANDIDATES]
    return met[(nearness >= least) & (nearness > 0)][:CANDIDATES]
