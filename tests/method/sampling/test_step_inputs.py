"""Pools of candidates, what is known of them, and similarities to them, against plain loops."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import csr_of

from ramen_ray.method.sampling import step_inputs
from ramen_ray.method.sampling.encoded import similarities
from ramen_ray.method.sampling.step_inputs import Pool

ROWS = st.lists(st.sets(st.integers(0, 40)).map(sorted), min_size=1, max_size=8)


@given(ROWS, st.sets(st.integers(0, 40)), st.integers(0, 3))
def test_links_are_all_pairs_of_rows_and_candidates_that_some_graph_has(rows, pool, num_marks):
    halves = [row[::2] for row in rows], [row[1:] for row in rows]
    asked = np.arange(len(rows))[::-1]
    with patch.object(step_inputs, "NUM_MARKS", 1 << num_marks):  # so that others share a mark
        candidates = Pool(np.array(sorted(pool), dtype=np.int64))
        links = candidates.links([csr_of(half) for half in halves], asked)
    expected = [
        [candidate in half[0] or candidate in half[1] for candidate in sorted(pool)]
        for half in [(halves[0][row], halves[1][row]) for row in asked]
    ]
    assert links.tolist() == np.flatnonzero(np.array(expected)).tolist()


@pytest.mark.parametrize("counting", [0, 3, 40])
def test_gradients_are_those_of_the_matrix_product(counting):
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
