"""Neighbours of ads against brute force, with equal texts."""

import numpy as np
import pytest
from support import csr_of, unit_rows

from ramen_ray.method.new_ads.neighbours import (
    Lookup,
    SeenAds,
    clicked_together,
    find_neighbours,
)

DIM = 8


@pytest.fixture
def seen():
    """60 seen ads, every third of a hundred; rows 3, 7, 20 and 21 have the same text."""
    embeddings = unit_rows(60, DIM, 3)
    embeddings[[7, 20, 21]] = embeddings[3]
    return SeenAds(np.arange(0, 180, 3), embeddings, unit_rows(60, DIM, 4))


def _nearest(vector, seen, own, count):
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


@pytest.mark.parametrize("threshold", [None, 0.1])
def test_neighbours_of_new_ads_are_near_or_chosen_by_their_classifiers(seen, threshold):
    new = unit_rows(6, DIM, 8)
    found = find_neighbours(seen, Lookup(3, 40, threshold), new)
    for vector, rows in zip(new, found, strict=True):
        near = _nearest(vector, seen, -1, 40)
        if threshold is not None:
            scores = {row: float(seen.classifiers[row] @ vector) for row in near}
            near = [row for row in near if scores[row] > threshold]
            near.sort(key=lambda row: -scores[row])
        assert rows.tolist() == (near + [-1] * 3)[:3]


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
