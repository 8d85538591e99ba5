"""Indexes that lose rows: what is left is found as before, under numbers without gaps."""

from functools import cache

import faiss
import numpy as np
import pytest

from ramen_ray.method.retrieval.index import (
    FEWEST_IVF_PQ_ADS,
    IndexKind,
    filled_index,
    with_rows_only,
)
from ramen_ray.method.retrieval.search import search_index

DIM, NUM_QUERIES, K = 16, 50, 10


def _vectors(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@cache
def _filled(kind: IndexKind) -> faiss.Index:
    return filled_index(kind, _vectors(FEWEST_IVF_PQ_ADS + 500, 0))


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("hnsw", 0.98), ("ivf_pq", 1.0)])
def test_rows_that_stay_are_found_as_before(kind: IndexKind, least: float) -> None:
    index, queries = faiss.clone_index(_filled(kind)), _vectors(NUM_QUERIES, 1)
    rows = np.flatnonzero(np.random.default_rng(2).random(index.ntotal) < 0.7)
    expected, expected_scores = search_index(index, queries, K, rows=rows)
    fewer = with_rows_only(index, rows)
    assert fewer.ntotal == len(rows)
    found, scores = search_index(fewer, queries, K)
    assert found.max() < len(rows)
    same = np.mean(
        [np.isin(rows[one], other).mean() for one, other in zip(found, expected, strict=True)]
    )
    assert same >= least
    if least == 1.0:
        np.testing.assert_allclose(scores, expected_scores, atol=1e-6)

    more = _vectors(3, 3)
    fewer.add(more)
    again, _ = search_index(faiss.deserialize_index(faiss.serialize_index(fewer)), more, 1)
    assert again[:, 0].tolist() == [len(rows), len(rows) + 1, len(rows) + 2], "numbers go on"


@pytest.mark.parametrize("number", [1, K // 2, 3000])
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf_pq"])
def test_few_rows_that_match_a_filter_are_all_searched(kind: IndexKind, number: int) -> None:
    ads, queries = _vectors(FEWEST_IVF_PQ_ADS + 500, 0), _vectors(NUM_QUERIES, 1)
    index = faiss.clone_index(_filled(kind))
    rows = np.sort(np.random.default_rng(2).choice(len(ads), number, replace=False))
    if kind == "ivf_pq":
        index.make_direct_map()
        ads = index.reconstruct_n(0, len(ads))
    scores, best = queries @ ads[rows].T, min(K, number)
    found, of_found = search_index(with_rows_only(index, rows, few_exactly=True), queries, K)
    assert (found[:, best:] == -1).all()
    found, of_found = found[:, :best], of_found[:, :best]
    np.testing.assert_allclose(of_found, -np.sort(-scores, axis=1)[:, :best], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(scores, found, 1), of_found, atol=1e-5)
