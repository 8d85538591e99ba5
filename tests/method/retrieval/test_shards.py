"""Shards of ads against a full sort, and against one search of all."""

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import unit_rows

from ramen_ray.method.retrieval.index import new_index
from ramen_ray.method.retrieval.search import merge_topk, search, search_index, share_found
from ramen_ray.method.retrieval.shards import (
    embedded_shards,
    index_shards,
    shard_ranges,
)

NUM_QUERIES, NUM_ADS, WIDTH = 60, 3000, 256
"""Enough for faiss to multiply matrices, in which a number's last bits depend on its place."""


def _search_shards(shards, queries, k):
    opened = [shard.open() for shard in shards]
    return merge_topk([search_index(index, queries, k, ids) for index, ids in opened], k)


@given(st.integers(0, 30_000), st.integers(1, 5000), st.floats(1e-6, 0.2))
def test_shards_are_all_ads_in_order_and_fit(num_ads, bytes_per_ad, gb_per_shard):
    shards = shard_ranges(num_ads, bytes_per_ad, gb_per_shard)
    assert [row for shard in shards for row in shard] == list(range(num_ads))
    assert all(shard.start % 1024 == 0 for shard in shards)
    sizes = [len(shard) for shard in shards]
    assert all(n <= 1024 or n * bytes_per_ad <= gb_per_shard * 1e9 for n in sizes)
    if num_ads * bytes_per_ad <= gb_per_shard * 1e9 and num_ads <= 1024:
        assert len(shards) <= 1
    assert max(sizes[:-1], default=0) - min(sizes[:-1], default=0) == 0


@pytest.mark.parametrize("k", [7, 4000])
def test_shards_find_what_one_search_finds_to_the_bit(tmp_path, k):
    ads, queries = unit_rows(NUM_ADS, WIDTH, 1), unit_rows(NUM_QUERIES, WIDTH, 0)
    ads[2500:2700], ads[1100:1105] = ads[100:300], ads[7]  # some are in several shards
    queries[:30] = ads[100:130]
    np.save(tmp_path / "all.npy", np.concatenate([queries, ads]))
    shards = embedded_shards(tmp_path / "all.npy", NUM_QUERIES, 0.0011)
    assert [len(shard.rows) for shard in shards] == [1024, 1024, 952]
    found, whole = _search_shards(shards, queries, k), search(queries, ads, k)
    np.testing.assert_array_equal(found[0], whole[0])
    np.testing.assert_array_equal(found[1], whole[1])


def test_short_codes_find_most_of_what_an_exact_search_finds(tmp_path):
    draw = np.random.default_rng(4)
    centres = draw.normal(size=(600, 48))
    rows = centres[draw.integers(600, size=60_200)] + 0.7 * draw.normal(size=(60_200, 48))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    np.save(tmp_path / "all.npy", rows)
    (shard,) = embedded_shards(tmp_path / "all.npy", 200, 1.0, is_exact=False)
    assert shard.num_bytes < 0.4 * rows.nbytes
    (ads, scores), (exact, _) = (
        _search_shards(some, rows[:200], 20)
        for some in ([shard], embedded_shards(tmp_path / "all.npy", 200, 1.0))
    )
    assert share_found(ads, exact) > 0.8
    (wider,) = embedded_shards(tmp_path / "all.npy", 200, 1.0, is_exact=False, effort=2)
    assert share_found(_search_shards([wider], rows[:200], 20)[0], exact) > share_found(ads, exact)
    similarities = np.einsum("qd,qkd->qk", rows[:200], rows[200:][ads])
    np.testing.assert_allclose(scores, similarities, atol=0.01)
    (index,) = tmp_path.glob("*.faiss")
    made = index.stat().st_mtime_ns
    again, _ = _search_shards([shard], rows[:200], 20)
    assert again.tolist() == ads.tolist()
    assert index.stat().st_mtime_ns == made  # another actor need not make it anew


@pytest.mark.parametrize("kind", ["flat", "half", "ivf_pq", "hnsw"])
def test_shards_of_a_retrievers_index_find_what_the_whole_one_finds(tmp_path, kind):
    ads, queries = (unit_rows(rows, 8, 3) for rows in (11_000, 50))
    index = new_index(kind, 8, len(ads))
    if not index.is_trained:
        index.train(ads)
    index.add(ads)
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    shards = index_shards(tmp_path / "index.faiss", 1e-4 if kind != "hnsw" else 2e-3)
    assert len(shards) > 1
    found, whole = _search_shards(shards, queries, 20), search_index(index, queries, 20)
    if kind == "hnsw":  # a graph is made anew
        assert share_found(found[0], search(queries, ads, 20)[0]) > 0.95
    else:
        assert found[0].tolist() == whole[0].tolist()
        assert found[1].tolist() == whole[1].tolist()
    opened = [shard.open()[0].ntotal for shard in shards]
    assert sum(opened) == 11_000
    assert max(opened) < 11_000
