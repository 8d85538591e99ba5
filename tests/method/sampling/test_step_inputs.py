"""Pools of candidates, and what is known of them, against plain loops."""

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import csr_of

from ramen_ray.method.sampling import step_inputs
from ramen_ray.method.sampling.step_inputs import Found, Pool

ROWS = st.lists(st.sets(st.integers(0, 40)).map(sorted), min_size=1, max_size=8)


@given(ROWS, st.sets(st.integers(0, 40)), st.integers(0, 3))
def test_links_are_all_pairs_of_rows_and_candidates_that_some_graph_has(
    rows: list[list[int]], pool: set[int], num_marks: int
) -> None:
    halves = [row[::2] for row in rows], [row[1:] for row in rows]
    asked = np.arange(len(rows))[::-1]
    with patch.object(step_inputs, "NUM_MARKS", 1 << num_marks):  # so that others share a mark
        candidates = Pool(np.array(sorted(pool), dtype=np.int64))
        links = candidates.links([csr_of(half) for half in halves], asked)
        mask = candidates.is_positive([csr_of(rows)], asked)
    expected = [
        [candidate in half[0] or candidate in half[1] for candidate in sorted(pool)]
        for half in [(halves[0][row], halves[1][row]) for row in asked]
    ]
    assert links.tolist() == np.flatnonzero(np.array(expected)).tolist()
    found = [[candidate in rows[row] for candidate in sorted(pool)] for row in asked]
    assert mask.tolist() == (found if pool else [[]] * len(rows))


@pytest.mark.parametrize(
    "drawn", [[[3, -1, 7], [[7, 2]]], [[-1, -1], []], [[5], [5, 5, 5]]], ids=str
)
def test_what_was_drawn_is_found_among_the_distinct_ids(drawn: list[Sequence[int]]) -> None:
    arrays = [np.array(ids, dtype=np.int64) for ids in drawn]
    texts = [ids * 10 for ids in arrays]
    found = Found.among(arrays, texts)
    flat = [one for ids in arrays for one in ids.reshape(-1).tolist()]
    assert found.pool.ids.tolist() == sorted(set(flat) - {-1})
    assert found.positions.tolist() == [10 * one for one in found.pool.ids.tolist()]
    for ids, places in zip(arrays, found.places, strict=True):
        assert places.shape == ids.shape
        assert places.tolist() == found.pool.find(ids).tolist()
        again = np.append(found.pool.ids, -1)[places]
        assert again.tolist() == ids.tolist()
