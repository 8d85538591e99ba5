"""Similar texts by TF-IDF of character n-grams: by all products, or by candidates of a sketch.

The sketch of a text is its vector on a few random directions, which keeps cosines to about
1 / sqrt(DIRECTIONS). Many texts are searched by sketches, and what is found gets true cosines.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from ramen_ray.data.arrays import Int64s, UInt64s, map_new_array
from ramen_ray.method.graph.similar import FOUND, SAMPLED_TEXTS, Similar, SimilarSettings, best_of
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.retrieval.shortlists import sampled_queries

NGRAM_LENGTHS = (2, 4)
PRODUCTS_AT_ONCE = 1 << 24
MOST_PRODUCTS = 13 * 10**9  # a minute of a core
DIRECTIONS = 256
CANDIDATES = 64
TEXTS_AT_ONCE = 8192


def ngram_vectors(texts: pa.ChunkedArray) -> csr_matrix:
    """Return the TF-IDF (texts, n-grams) float32 of texts (n,) strings, unit norm."""
    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=NGRAM_LENGTHS, sublinear_tf=True, dtype=np.float32
    )
    return vectorizer.fit_transform(texts.to_pylist()).tocsr()


def are_few(vectors: csr_matrix) -> bool:
    """Say whether all products of the vectors (n, n-grams) take no more than MOST_PRODUCTS."""
    texts_with = np.bincount(vectors.indices, minlength=vectors.shape[1])
    return bool((texts_with.astype(np.float64) ** 2).sum() <= MOST_PRODUCTS)


def write_sketches(vectors: csr_matrix, file: Path) -> None:
    """Write the sketches (n, DIRECTIONS) float32 of vectors (n, n-grams), unit norm."""
    draw = np.random.default_rng(0)
    directions = draw.standard_normal((vectors.shape[1], DIRECTIONS), dtype=np.float32)
    sketches = map_new_array(file, np.float32, (vectors.shape[0], DIRECTIONS))

    def write(start: int) -> None:
        some = vectors[start : start + TEXTS_AT_ONCE] @ directions
        some /= np.maximum(np.linalg.norm(some, axis=1, keepdims=True), 1e-12)
        sketches[start : start + TEXTS_AT_ONCE] = some

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(write, range(0, vectors.shape[0], TEXTS_AT_ONCE)))
    sketches.flush()


def similar_by_sketches(
    vectors: csr_matrix,
    nearest: Iterable[tuple[Int64s, TopK]],
    plain: UInt64s,
    settings: SimilarSettings,
    counts: Counter[str],
) -> Iterator[Similar]:
    """Yield what is similar to some texts at a time, among the candidates of a search.

    ``vectors`` are (n, n-grams), as of :func:`ngram_vectors`, ``plain`` (n,) hashes of
    :func:`~ramen_ray.method.graph.similar.plain_hashes`. ``nearest`` has blocks of all texts (m,),
    and those whose sketches are nearest (m, k). ``counts`` gets, as FOUND, the recall in per cent.
    """
    num_texts = vectors.shape[0]
    sample, sampled = sampled_queries(num_texts, SAMPLED_TEXTS), []
    for texts, (others, _) in nearest:
        cosines = _cosines(vectors, texts, others)
        rows, places = np.nonzero(others >= 0)
        found = _kept(texts[rows], others[rows, places], cosines[rows, places], plain, settings)
        in_sample = np.isin(found[0], sample)
        sampled.append(found[0][in_sample] * num_texts + found[1][in_sample])
        yield found
    exact = [found for _, found in similar_by_all_products(vectors, sample, plain, settings)]
    wanted = np.concatenate([texts * num_texts + others for texts, others, _ in exact])
    counts[FOUND] = round(100 * float(np.isin(wanted, np.concatenate(sampled)).mean()))


def similar_by_all_products(
    vectors: csr_matrix, texts: Int64s, plain: UInt64s, settings: SimilarSettings
) -> Iterator[tuple[int, Similar]]:
    """Yield the number of some of ``texts`` (m,), and what is similar to them."""
    columns = vectors.T.tocsr()
    rows_at_once = max(PRODUCTS_AT_ONCE // vectors.shape[0], 1)
    for start in range(0, len(texts), rows_at_once):
        some = texts[start : start + rows_at_once]
        product = (vectors[some] @ columns).tocoo()
        others = product.col.astype(np.int64)
        yield len(some), _kept(some[product.row], others, product.data, plain, settings)


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


def _cosines(vectors: csr_matrix, texts: Int64s, others: Int64s) -> NDArray[np.float32]:
    """Return the cosines (m, k) of texts (m,) and others (m, k); 0 where another is negative."""
    parts = (vectors.indptr, vectors.indices, vectors.data)
    cosines = np.zeros(others.shape, np.float32)
    of_text = np.zeros(vectors.shape[1], np.float32)
    _fill_cosines(parts, texts, others, of_text, cosines)
    return cosines


@njit(nogil=True)
def _fill_cosines(parts, texts, others, of_text, cosines):  # type: ignore[no-untyped-def]
    starts, columns, values = parts
    for i in range(len(texts)):
        own = slice(starts[texts[i]], starts[texts[i] + 1])
        of_text[columns[own]] = values[own]
        for j in range(others.shape[1]):
            if others[i, j] >= 0:
                for entry in range(starts[others[i, j]], starts[others[i, j] + 1]):
                    cosines[i, j] += of_text[columns[entry]] * values[entry]
        of_text[columns[own]] = 0
