"""Search on a GPU finds what a CPU finds."""

import numpy as np
import pytest
import torch
from support import unit_rows

from ramen_ray.method.retrieval.search import TorchIndex, build_index, search_index

pytestmark = pytest.mark.gpu

K = 100
WITHIN = 1e-5  # of a score in float64; TF32 is off by up to 1e-3


def _by_faiss(ads):
    faiss = pytest.importorskip("faiss", reason="there is no faiss here")
    if faiss.get_num_gpus() == 0:
        pytest.skip("the faiss that is installed knows no GPU")
    return build_index(ads, gpu=0)


def _by_torch(ads):
    return TorchIndex(ads, torch.device("cuda:0"))


@pytest.mark.parametrize("build", [_by_torch, _by_faiss])
def test_the_nearest_ads_are_those_of_a_full_sort(build):
    queries, ads = unit_rows(300, 64, 0), unit_rows(50_000, 64, 1)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # as in training
    try:
        found, scores = search_index(build(ads), queries, K)
    finally:
        torch.set_float32_matmul_precision(before)
    products = queries.astype(np.float64) @ ads.astype(np.float64).T
    best = -np.sort(-products, axis=1)[:, :K]
    np.testing.assert_allclose(scores, best, atol=WITHIN)
    np.testing.assert_allclose(np.take_along_axis(products, found, 1), best, atol=WITHIN)
    assert all(len(set(row)) == K for row in found.tolist())
