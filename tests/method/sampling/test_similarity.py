"""Similarities and their gradients against the plain matrix product, few of which count or all."""

import pytest
import torch

from ramen_ray.method.sampling.encoded import similarities


@pytest.mark.parametrize("counting", [0, 3, 40])
def test_gradients_are_those_of_the_matrix_product(counting: int) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    candidates = torch.randn(120, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    chosen = torch.rand(30, 120, generator=draw).topk(counting, dim=1).indices
    weights = torch.randn(30, counting, generator=draw, dtype=torch.float64)
    found, expected = similarities(rows, candidates), rows @ candidates.T
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad((products.gather(1, chosen) * weights).sum(), (rows, candidates))
        for products in (found, expected)
    ]
    torch.testing.assert_close(*gradients)
