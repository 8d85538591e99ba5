"""Drawn queries stand for all of them, and agreement is that of scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from ramen_ray.method.metrics.drawn import drawn_places, inclusion, kappa, weighed
from ramen_ray.method.metrics.ranking import ratio


def test_each_is_drawn_with_its_chance_and_sums_over_chances_are_those_of_all():
    draw = np.random.default_rng(0)
    weights = draw.pareto(1.0, 60) + 0.1
    gained = draw.random(60)
    possible = draw.integers(1, 6, 60).astype(float)
    chances = inclusion(weights, 20)
    assert chances.sum() == pytest.approx(20)
    free = chances < 1
    assert 0 < (~free).sum() < 20
    assert np.ptp(chances[free] / weights[free]) < 1e-12
    times = np.zeros(60)
    sums = []
    for seed in range(4000):
        places = drawn_places(chances, np.random.default_rng(seed))
        assert len({*places.tolist()}) == len(places) == 20
        times[places] += 1
        values = gained[places] * possible[places], possible[places]
        (of_sample,) = weighed({"name": values}, 1 / chances[places]).values()
        sums.append([part.sum() for part in of_sample])
    np.testing.assert_allclose(times / 4000, chances, atol=0.03)
    expected = (gained * possible).sum(), possible.sum()
    np.testing.assert_allclose(np.mean(sums, axis=0), expected, rtol=0.02)
    everything = drawn_places(inclusion(weights, 60), draw)
    assert sorted(everything.tolist()) == [*range(60)]
    assert ratio((gained * possible, possible)) == pytest.approx(expected[0] / expected[1])


@pytest.mark.parametrize("noise", [0, 1, 2, 4])
def test_kappa_is_the_agreement_beyond_chance(noise):
    draw = np.random.default_rng(noise)
    ours = draw.integers(0, 4, 200).tolist()
    theirs = [int(draw.integers(0, 4)) if draw.random() < noise / 4 else grade for grade in ours]
    assert kappa(ours, theirs) == pytest.approx(cohen_kappa_score(ours, theirs))
    assert kappa([2, 2], [2, 2]) == 1.0
