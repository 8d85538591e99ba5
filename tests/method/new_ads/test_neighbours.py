"""Neighbours of ads against brute force, with equal texts, and votes made by hand."""

import numpy as np
import pytest
from support import csr_of, unit_rows

from ramen_ray.method.new_ads.neighbours import (
    Lookup,
    Ranked,
    SeenAds,
    clicked_together,
    find_neighbours,
    max_vote,
)

DIM = 8


@pytest.fixture
def seen() -> SeenAds:
    """60 seen ads, every third of a hundred; rows 3, 7, 20 and 21 have the same text."""
    embeddings = unit_rows(60, DIM, 3)
    embeddings[[7, 20, 21]] = embeddings[3]
    return SeenAds(np.arange(0, 180, 3), embeddings, unit_rows(60, DIM, 4))


def _nearest(vector: np.ndarray, seen: SeenAds, own: int, count: int) -> list[int]:
    """Sort all rows but ``own`` by cosine, then by row."""
    cosines = [round(float(vector @ other), 5) for other in seen.embeddings]
    rows = sorted(range(len(cosines)), key=lambda row: (-cosines[row], row))
    return [row for row in rows if row != own][:count]


@pytest.mark.parametrize("count", [1, 3, 70])
def test_the_nearest_are_those_of_brute_force_without_the_ad_itself(seen, count):
    assert seen.rows_of(np.array([0, 1, 177, 500])).tolist() == [0, -1, 59, -1]
    own = np.arange(60)
    found = seen.nearest(seen.embeddings, count, own).rows
    for row in own:
        expected = _nearest(seen.embeddings[row], seen, row, count)
        assert found[row].tolist() == expected + [-1] * (count - len(expected))
    assert {7, 20, 21}.issubset(seen.nearest(seen.embeddings[[3]], 3, own[[3]]).rows[0])


def test_votes_count_first_and_the_highest_score_next():
    by_text = Ranked(np.array([[4, 2, 9], [1, -1, -1]]), np.array([[0.9, 0.5, 0.4], [0.3, -1, -1]]))
    by_query = Ranked(
        np.array([[9, 7, 2], [5, 6, -1]]), np.array([[0.6, 0.8, 0.1], [0.2, 0.4, -1]])
    )
    assert max_vote([by_text, by_query], 3).tolist() == [[9, 2, 4], [6, 1, 5]]
    assert max_vote([by_text, by_query], 5).tolist() == [[9, 2, 4, 7, -1], [6, 1, 5, -1, -1]]
    nothing = Ranked(np.full((2, 3), -1), np.full((2, 3), -np.inf))
    assert max_vote([nothing, nothing], 2).tolist() == [[-1, -1], [-1, -1]]


@pytest.mark.parametrize("threshold", [None, 0.1])
def test_a_revealed_click_changes_the_neighbours_of_its_ad_only(seen, threshold):
    new, lookup = unit_rows(6, DIM, 8), Lookup(3, 40, threshold)
    without = find_neighbours(seen, lookup, new)
    (query,) = unit_rows(1, DIM, 9)
    found = find_neighbours(seen, lookup, new, revealed=(np.array([4]), query[None]))
    assert np.flatnonzero((found != without).any(axis=1)).tolist() == [4]
    near = _nearest(new[4], seen, -1, 40)
    by_query = {row: float(seen.classifiers[row] @ query) for row in near}
    if threshold is None:
        by_text = {row: float(seen.embeddings[row] @ new[4]) for row in near[:3]}
        best = sorted(near, key=lambda row: -by_query[row])[:3]
        by_query = {row: by_query[row] for row in best}
    else:
        by_text = {row: float(seen.classifiers[row] @ new[4]) for row in near}
        by_text, by_query = (
            {row: score for row, score in one.items() if score > threshold}
            for one in (by_text, by_query)
        )
    both = (by_text, by_query)
    voted = sorted(
        {*by_text, *by_query},
        key=lambda row: (
            -sum(row in one for one in both),
            -max(one[row] for one in both if row in one),
        ),
    )
    assert found[4].tolist() == voted[:3]


def test_ads_clicked_together_are_ordered_by_text():
    embeddings = unit_rows(6, DIM, 9)
    clicks = csr_of([[0, 1, 2, 3], [0, 4], [], [5], [1, 2]])
    found = clicked_together(clicks, embeddings, 3)
    expected = {0: [1, 2, 3, 4], 1: [0, 2, 3], 2: [0, 1, 3], 3: [0, 1, 2], 4: [0], 5: []}
    for row, others in expected.items():
        ordered = sorted(others, key=lambda other: -float(embeddings[row] @ embeddings[other]))[:3]
        missing = 3 - len(ordered)
        assert found.rows[row].tolist() == ordered + [-1] * missing
        cosines = [*(embeddings[row] @ embeddings[ordered].T), *[-np.inf] * missing]
        np.testing.assert_allclose(found.scores[row], cosines, atol=1e-5)
