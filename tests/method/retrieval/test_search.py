"""Search, merging and filtering against argsort and plain loops."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support import best_by_a_sort
from written_out import column_of

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.metrics.ranking import (
    group_metrics,
    inverse_propensities,
    popularity_groups,
    query_metrics,
    ratios,
)
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_transformer
from ramen_ray.method.retrieval import search as search_module
from ramen_ray.method.retrieval.search import (
    drop_filtered,
    merge_topk,
    most_filters,
    search,
    search_index,
    share_found,
)

WIDTH = 8
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), unique=True)


@given(PAIRS, st.integers(1, 10), st.integers(0, 10), st.integers(0, 99))
def test_drop_filtered_equals_a_loop(pairs, k, num_found, seed):
    draw = np.random.default_rng(seed)
    ads = np.stack([draw.permutation(10) for _ in range(5)])
    ads[:, num_found:] = -1
    scores = -np.sort(draw.normal(size=(5, 10)).astype(np.float32), axis=1)
    scores[:, num_found:] = -np.inf
    filters = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    assert most_filters(filters) == max(Counter(query for query, _ in pairs).values(), default=0)
    found, found_scores = drop_filtered((ads, scores), filters, k)
    for query in range(5):
        kept = [
            (ad, score)
            for ad, score in zip(ads[query].tolist(), scores[query].tolist(), strict=True)
            if ad >= 0 and (query, ad) not in pairs
        ]
        kept = [*kept, *[(-1, -np.inf)] * 10][:k]
        assert found[query].tolist() == [ad for ad, _ in kept]
        assert found_scores[query].tolist() == [score for _, score in kept]


@example([([8], [0]), ([1], [3])], 1, 1)
@given(
    st.lists(st.tuples(st.permutations(range(-1, 9)), st.permutations(range(-1, 9))), min_size=1),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_share_found_equals_a_loop(rows, num_found, num_exact):
    found = np.array([row[0][:num_found] for row in rows])
    exact = np.array([row[1][:num_exact] for row in rows])
    exact[0, 0] = 3
    are_found = [
        ad in row.tolist()
        for row, wanted in zip(found, exact, strict=True)
        for ad in wanted.tolist()
        if ad >= 0
    ]
    assert share_found(found, exact) == pytest.approx(np.mean(are_found))


SEVEN = np.random.default_rng(0).integers(-99, 99, (7, WIDTH))
TIED = {  # in whole numbers, so that products are exact
    "whole numbers": lambda draw, rows: draw.integers(-1, 2, (rows, WIDTH)),
    "many twins": lambda draw, rows: SEVEN[draw.integers(0, 7, rows)],
    "all equal": lambda draw, rows: np.ones((rows, WIDTH)),
}


@pytest.mark.parametrize("index", ["faiss", "torch"])
@pytest.mark.parametrize("made", TIED)
@pytest.mark.parametrize("k", [1, 130, 4000])
def test_equal_ads_come_in_a_fixed_shuffle_whatever_part_has_them(made, index, k, monkeypatch):
    draw = np.random.default_rng(2)
    queries, ads = (TIED[made](draw, rows).astype(np.float32) for rows in (10, 3000))
    if index == "torch":
        monkeypatch.setattr(search_module, "faiss", None)
        monkeypatch.setattr(search_module, "ADS_PER_TORCH_BLOCK", 700)
    whole = search(queries, ads, k)
    bounds = [0, 1024, 2048, 3000]
    ids = np.arange(3000)
    order = [2, 0, 1]
    parts = [search(queries, ads[a:b], k, ids=ids[a:b]) for a, b in pairwise(bounds)]
    best, near = best_by_a_sort(queries, ads, k)
    for found, scores in (whole, merge_topk([parts[part] for part in order], k)):
        assert found[:, :3000].tolist() == best.tolist()
        assert scores[:, :3000].tolist() == near.tolist()
        assert (found[:, 3000:] == -1).all()


def test_torch_does_not_change_the_precision_of_training():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        unit = np.eye(3, dtype=np.float32)
        search_index(search_module.TorchIndex(unit, torch.device("cpu")), unit, 2)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_ranks_all_ads_but_the_filtered_and_measures_that(
    prepared, dataset_path, encoder_path, split
):
    encoder = DualEncoder(build_transformer(encoder_path))
    metrics, (ads, scores) = evaluate(encoder, prepared, split, Propensity(a=0.6, b=2.6))
    queries = encoder.embed_texts(prepared.queries[split], np.arange(12))
    similarity = queries @ encoder.embed_texts(prepared.ads, np.arange(40)).T
    dropped = {tuple(pair) for pair in prepared.filters(split).tolist()}
    assert dropped
    for query, row in enumerate(ads.tolist()):
        allowed = [ad for ad in range(40) if (query, ad) not in dropped]
        shown = row[: len(allowed)]
        assert sorted(shown) == allowed
        assert set(row[len(allowed) :]) == {-1}
        np.testing.assert_allclose(scores[query, : len(shown)], similarity[query, shown], atol=1e-5)
        assert (np.diff(similarity[query, shown]) < 1e-5).all()
    counts = prepared.train_click_counts
    truth = prepared.clicks[split]
    inverse = inverse_propensities(counts, 60, 0.6, 2.6)
    expected = query_metrics(ads, truth, inverse, [1, 3, 5, 10, 100])
    expected |= group_metrics(ads, truth, popularity_groups(counts), [1, 5, 10])
    texts = column_of(Dataset(dataset_path), f"queries/{split}")
    trained = {*column_of(Dataset(dataset_path), "queries/train")}
    seen = np.array([text in trained for text in texts])
    assert seen.any() and not seen.all()
    for group, weight in (
        ("traffic", truth.degrees(np.arange(12))),
        ("seen", seen),
        ("new", ~seen),
    ):
        for name in ("P@1", "P@5", "P@10", "R@1", "R@5", "R@10"):
            hits, of = expected[name]
            expected[f"{group}/{name}"] = hits * weight, of * weight
    assert metrics == pytest.approx(ratios(expected))
