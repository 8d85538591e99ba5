"""Similar texts by TF-IDF of character n-grams: by all products, or among the nearest of sketches.

A sketch is a vector of n-grams times a random matrix: 256 numbers, whose cosines differ from those
of the vectors by 0.06 or so. Nearly all of a text's nearest are among the fifty of the nearest
sketches, and these get their true cosines.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from ramen_ray.data.arrays import Int64s, UInt64s
from ramen_ray.method.graph.similar import SearchTexts, Similar, SimilarSettings, best_of
from ramen_ray.method.retrieval.search import TopK

NGRAM_LENGTHS = (2, 4)
PRODUCTS_AT_ONCE = 1 << 24
MOST_EXACT_PRODUCTS = 13 * 10**9  # a minute of a core
SKETCH_DIM = 256
SKETCHES_AT_ONCE = 1 << 16
SPARE_CANDIDATES = 48
"""Texts that are searched by their sketches besides those asked for."""


def ngram_vectors(texts: pa.StringArray) -> csr_matrix:
    """Return the TF-IDF (texts, n-grams) float32 of texts (n,) strings, unit norm."""
    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=NGRAM_LENGTHS, sublinear_tf=True, dtype=np.float32
    )
    return vectorizer.fit_transform(texts.to_pylist()).tocsr()


def costs_too_much(vectors: csr_matrix) -> bool:
    """Say whether all products take more than a minute, so that sketches pay."""
    texts_with = np.bincount(vectors.indices).astype(np.float64)
    return bool((texts_with**2).sum() > MOST_EXACT_PRODUCTS)


def similar_by_ngrams(
    vectors: csr_matrix, plain: UInt64s, settings: SimilarSettings
) -> Iterator[Similar]:
    """Yield what is similar to some texts at a time, by sparse products.

    Args:
        vectors: (n, n-grams), as of :func:`ngram_vectors`.
        plain: (n,) of :func:`~ramen_ray.method.graph.similar.plain_hashes`.
        settings: which texts are similar.
    """
    columns, num_texts = vectors.T.tocsr(), vectors.shape[0]
    rows_at_once = max(PRODUCTS_AT_ONCE // num_texts, 1)
    for start in range(0, num_texts, rows_at_once):
        product = (vectors[start : start + rows_at_once] @ columns).tocoo()
        near = product.data >= settings.min_similarity
        rows, others = product.row[near].astype(np.int64) + start, product.col[near]
        similarities = product.data[near]
        kept = (similarities <= settings.max_similarity) & (plain[rows] != plain[others])
        yield best_of(rows[kept], others[kept].astype(np.int64), similarities[kept], settings)


def sketches(vectors: csr_matrix) -> Iterator[NDArray[np.float32]]:
    """Yield the sketches (some texts, SKETCH_DIM) float32 of all texts, unit norm, in order."""
    draw = np.random.default_rng(0)
    projection = draw.standard_normal((vectors.shape[1], SKETCH_DIM), dtype=np.float32)
    for start in range(0, vectors.shape[0], SKETCHES_AT_ONCE):
        some = vectors[start : start + SKETCHES_AT_ONCE] @ projection
        yield some / np.maximum(np.linalg.norm(some, axis=1, keepdims=True), 1e-30)


def by_true_cosines(find: SearchTexts, vectors: csr_matrix) -> SearchTexts:
    """Make a search that ranks what ``find`` finds, and some more, by cosines of ``vectors``."""
    parts = vectors.indptr, vectors.indices, vectors.data, vectors.shape[1]

    def search(texts: Int64s | range, k: int) -> Iterator[tuple[Int64s, TopK]]:
        most = min(k + SPARE_CANDIDATES, vectors.shape[0])
        for rows, (others, _) in find(texts, most):
            yield rows, _k_nearest(others, _cosines(*parts, rows, others), k)

    return search


def nearest_by_ngrams(vectors: csr_matrix, texts: Int64s, k: int) -> Int64s:
    """Return the k texts (n, k) with the largest products with each of some texts (n,)."""
    columns = vectors.T.tocsr()
    rows_at_once = max(PRODUCTS_AT_ONCE // vectors.shape[0], 1)
    nearest = []
    for start in range(0, len(texts), rows_at_once):
        product = (vectors[texts[start : start + rows_at_once]] @ columns).toarray()
        nearest.append(np.argpartition(-product, k - 1, axis=1)[:, :k])
    return np.concatenate(nearest)


def _k_nearest(others: Int64s, similarities: NDArray[np.float32], k: int) -> TopK:
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(others, order, 1), np.take_along_axis(similarities, order, 1)


@njit
def _cosines(starts, columns, values, num_columns, rows, others):  # type: ignore[no-untyped-def]
    """Multiply the vectors of rows (n,) and others (n, k); -inf (n, k) where there is no other."""
    of_row = np.zeros(num_columns, np.float32)
    found = np.full(others.shape, -np.inf, np.float32)
    for i in range(len(rows)):
        own = slice(starts[rows[i]], starts[rows[i] + 1])
        of_row[columns[own]] = values[own]
        for j in range(others.shape[1]):
            if others[i, j] >= 0:
                total = np.float32(0)
                for entry in range(starts[others[i, j]], starts[others[i, j] + 1]):
                    total += of_row[columns[entry]] * values[entry]
                found[i, j] = total
        of_row[columns[own]] = 0
    return found
