"""Indexes that lose rows, and index files made in parts, against whole indexes."""

from collections.abc import Callable
from functools import cache
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import unit_rows

from ramen_ray.method.retrieval.index import (
    FEWEST_IVF_PQ_ADS,
    IndexKind,
    extended_index_file,
    filled_index,
    index_file,
    new_index,
    with_rows_only,
)
from ramen_ray.method.retrieval.search import search_index

DIM, NUM_QUERIES, K = 16, 50, 10


@cache
def _filled(kind: IndexKind) -> faiss.Index:
    return filled_index(kind, unit_rows(FEWEST_IVF_PQ_ADS + 500, DIM, 0))


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("hnsw", 0.98), ("ivf_pq", 1.0)])
def test_rows_that_stay_are_found_as_before(kind, least):
    index, queries = faiss.clone_index(_filled(kind)), unit_rows(NUM_QUERIES, DIM, 1)
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

    more = unit_rows(3, DIM, 3)
    fewer.add(more)
    again, _ = search_index(faiss.deserialize_index(faiss.serialize_index(fewer)), more, 1)
    assert again[:, 0].tolist() == [len(rows), len(rows) + 1, len(rows) + 2], "numbers go on"


@pytest.mark.parametrize("number", [1, K // 2, 3000])
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf_pq"])
def test_few_rows_that_match_a_filter_are_all_searched(kind, number):
    ads, queries = unit_rows(FEWEST_IVF_PQ_ADS + 500, DIM, 0), unit_rows(NUM_QUERIES, DIM, 1)
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


NUM_ADS, WIDTH, BYTES_PER_AD = FEWEST_IVF_PQ_ADS, 8, 4 + 8
MakeIndex = Callable[[], Any]
ADS = unit_rows(NUM_ADS, WIDTH, 0)


@pytest.fixture(scope="module", params=["ivf_pq", "flat"])
def empty(request: pytest.FixtureRequest) -> MakeIndex:
    """Makes trained indexes without ads."""
    index = new_index(request.param, WIDTH, NUM_ADS)
    if not index.is_trained:
        index.train(ADS)
    serialized = faiss.serialize_index(index)
    return lambda: faiss.deserialize_index(serialized)


def _whole(index: Any, blocks: list[np.ndarray]) -> bytes:
    for block in blocks:
        index.add(block)
    return bytes(faiss.serialize_index(index))


@given(st.sets(st.integers(1, NUM_ADS - 1), max_size=6), st.integers(1, NUM_ADS))
def test_an_index_made_in_parts_is_the_whole_one_to_the_bit(tmp_path_factory, empty, cuts, room):
    file = tmp_path_factory.mktemp("index") / "index.faiss"
    blocks = np.split(ADS, sorted(cuts))
    with index_file(file, empty(), 2e-9 * room * BYTES_PER_AD) as add:
        for block in blocks:
            add(block)
    assert file.read_bytes() == _whole(empty(), blocks)
    assert [*file.parent.iterdir()] == [file]


def test_ads_added_to_a_file_are_those_added_to_an_index(tmp_path, empty):
    file, blocks = tmp_path / "index.faiss", np.split(ADS, [7000, 8000, 8001])
    file.write_bytes(_whole(empty(), blocks[:1]))
    with extended_index_file(file, 2e-9 * 500 * BYTES_PER_AD) as add:
        for block in blocks[1:]:
            add(block)
    assert file.read_bytes() == _whole(empty(), blocks)


def test_memory_holds_a_part_of_an_index_in_cells(tmp_path):
    index = new_index("ivf_pq", WIDTH, NUM_ADS)
    index.train(ADS)
    in_memory = []
    with index_file(tmp_path / "index.faiss", index, 2e-9 * 1001 * BYTES_PER_AD) as add:
        for block in np.split(ADS, 20):
            add(block)
            in_memory.append(index.invlists.compute_ntotal())
    assert max(in_memory) == 1000
    assert faiss.read_index(str(tmp_path / "index.faiss")).ntotal == NUM_ADS


def test_an_error_leaves_the_file_as_it_was(tmp_path, empty):
    file = tmp_path / "index.faiss"
    file.write_bytes(before := _whole(empty(), [ADS]))
    with pytest.raises(KeyError), extended_index_file(file, 1e-6) as add:
        add(ADS)
        raise KeyError
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]
