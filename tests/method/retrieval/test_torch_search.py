"""Exact search by torch against a full sort in float64, and against faiss where scores tie."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.method.retrieval import torch_search
from ramen_ray.method.retrieval.search import search, search_index
from ramen_ray.method.retrieval.torch_search import TorchIndex

CPU = torch.device("cpu")
WIDTH = 3

sizes = st.tuples(st.integers(1, 9), st.integers(0, 40), st.integers(1, 50), st.integers(0, 9999))


def _whole_numbers(num_rows: int, seed: int) -> np.ndarray:
    """Return vectors whose products are exact, often equal, often zero and often negative."""
    draw = np.random.default_rng(seed)
    return draw.integers(-2, 3, size=(num_rows, WIDTH)).astype(np.float32)


def _sorted(queries: np.ndarray, ads: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort all ads by score, the last first among equals; pad with -1 and -inf."""
    scores = queries.astype(np.float64) @ ads.astype(np.float64).T
    best = len(ads) - 1 - np.argsort(-scores[:, ::-1], axis=1, kind="stable")[:, :k]
    padding = ((0, 0), (0, k - best.shape[1]))
    found = np.take_along_axis(scores, best, 1)
    return (
        np.pad(best, padding, constant_values=-1),
        np.pad(found, padding, constant_values=-np.inf),
    )


@pytest.mark.parametrize("blocks", [(1 << 10, 1 << 14), (4, 7)])
@given(case=sizes)
def test_it_equals_a_full_sort_ties_and_padding_included(
    blocks: tuple[int, int], case: tuple[int, int, int, int]
) -> None:
    num_queries, num_ads, k, seed = case
    queries, ads = _whole_numbers(num_queries, seed), _whole_numbers(num_ads, seed + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_search, "QUERIES_PER_BLOCK", blocks[0])
        patch.setattr(torch_search, "ADS_PER_BLOCK", blocks[1])
        found, scores = search_index(TorchIndex(ads, CPU), queries, k)
    expected, expected_scores = _sorted(queries, ads, k)
    assert (found.dtype, scores.dtype) == (np.int64, np.float32)
    assert found.tolist() == expected.tolist()
    assert scores.tolist() == expected_scores.tolist()


@given(case=sizes)
def test_faiss_orders_equal_scores_alike(case: tuple[int, int, int, int]) -> None:
    num_queries, num_ads, k, seed = case
    queries, ads = _whole_numbers(num_queries, seed), _whole_numbers(num_ads, seed + 1)
    found, scores = search_index(TorchIndex(ads, CPU), queries, k)
    by_faiss, same_scores = search(queries, ads, k)
    assert scores.tolist() == same_scores.tolist()
    chosen = scores > scores[:, -1:]  # of those that equal the last, either may leave some out
    chosen |= k >= num_ads
    assert found[chosen].tolist() == by_faiss[chosen].tolist()


def test_scores_are_kept_to_the_bit() -> None:
    draw = np.random.default_rng(0)
    queries, ads = (draw.normal(size=(n, 16)).astype(np.float32) for n in (5, 300))
    found, scores = search_index(TorchIndex(ads, CPU), queries, 300)
    products = (torch.from_numpy(queries) @ torch.from_numpy(ads).T).numpy()
    assert scores.tolist() == np.take_along_axis(products, found, 1).tolist()
    assert (np.diff(scores, axis=1) <= 0).all()


def test_it_does_not_change_the_precision_of_training() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        search_index(TorchIndex(np.eye(3, dtype=np.float32), CPU), np.eye(3, dtype=np.float32), 2)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
