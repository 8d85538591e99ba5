"""Indexes that lose rows, against whole indexes."""

import faiss
import numpy as np
import pytest
from support import unit_rows

from ramen_ray.method.retrieval.index import (
    FEWEST_IVF_PQ_ADS,
    filled_index,
    with_rows_only,
)
from ramen_ray.method.retrieval.search import search_index, share_found

DIM, NUM_QUERIES, K = 16, 20, 10


def test_half_precision_finds_the_same_in_half_of_the_memory():
    ads, queries = (unit_rows(rows, 384, seed) for rows, seed in ((5_000, 0), (200, 1)))
    flat, half = (filled_index(kind, ads) for kind in ("flat", "half"))
    assert 2 * len(faiss.serialize_index(half)) < 1.01 * len(faiss.serialize_index(flat))
    exact, found = (search_index(index, queries, K) for index in (flat, half))
    assert share_found(found[0], exact[0]) >= 0.999
    np.testing.assert_allclose(found[1], exact[1], atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "least"), [("flat", 1.0), ("half", 1.0), ("hnsw", 0.98), ("ivf_pq", 1.0)]
)
def test_rows_that_stay_are_found_as_before(kind, least):
    index = filled_index(kind, unit_rows(FEWEST_IVF_PQ_ADS + 500, DIM, 0))
    queries = unit_rows(NUM_QUERIES, DIM, 1)
    rows = np.flatnonzero(np.random.default_rng(2).random(index.ntotal) < 0.7)
    best, best_scores = search_index(index, queries, index.ntotal)
    stays = np.isin(best, rows)
    expected, expected_scores = (
        np.array([row[kept][:K] for row, kept in zip(part, stays, strict=True)])
        for part in (best, best_scores)
    )
    fewer = with_rows_only(index, rows)
    assert fewer.ntotal == len(rows)
    found, scores = search_index(fewer, queries, K)
    assert found.max() < len(rows)
    assert share_found(rows[found], expected) >= least
    if least == 1.0:
        np.testing.assert_allclose(scores, expected_scores, atol=1e-6)

    more = unit_rows(3, DIM, 3)
    fewer.add(more)
    again, _ = search_index(faiss.deserialize_index(faiss.serialize_index(fewer)), more, 1)
    assert again[:, 0].tolist() == [len(rows), len(rows) + 1, len(rows) + 2], "numbers go on"
