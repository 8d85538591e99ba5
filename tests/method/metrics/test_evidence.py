"""Whether a model is better beyond noise: simulated histories, plain loops and closed formulas."""

import math

import numpy as np
import pyarrow as pa
import pytest

from ramen_ray.data.store.same_texts import alike
from ramen_ray.method.metrics.comparison import Evidence, by_piece, paired_differences

WEEKS = 26
QUERIES = 1000


def _evidence(ours, base, time=1):
    ones = np.ones(len(ours))
    return Evidence.measured((ours, ones), (base, ones), time)


def _share_with_a_promotion(histories, counts_as_first):
    """Ask each week whether an equal model beats the champion; each time may count as the first."""
    draw = np.random.default_rng(0)
    was_promoted = np.zeros(histories, dtype=bool)
    for history in range(histories):
        chance = draw.beta(0.7, 0.7, QUERIES)  # of each query, for all models
        champion = (draw.random(QUERIES) < chance).astype(float)
        for week in range(1, WEEKS + 1):
            candidate = (draw.random(QUERIES) < chance).astype(float)
            test = _evidence(candidate, champion, 1 if counts_as_first else week)
            if test.value > test.noise:
                champion = candidate
                was_promoted[history] = True
    return float(was_promoted.mean())


def test_equal_models_that_are_asked_each_week_are_rarely_promoted():
    assert _share_with_a_promotion(400, counts_as_first=True) > 0.2
    assert _share_with_a_promotion(400, counts_as_first=False) <= 0.05


@pytest.mark.parametrize("time", [1, 10])
def test_what_would_be_seen_is_what_simulated_tests_see(time):
    draw = np.random.default_rng(1)
    difference = 0.05

    def tested(size):
        base = draw.random(size) < 0.5
        gained = draw.random(size) < np.where(base, 0.8, 0.2 + 2 * difference)
        return _evidence(gained.astype(float), base.astype(float), time)

    def seen(tests):
        return float(np.mean([test.value > test.noise for test in tests]))

    tests = [tested(QUERIES) for _ in range(2000)]
    told = np.mean([test.power(difference) for test in tests])
    assert told == pytest.approx(seen(tests), abs=0.03)
    enough = np.mean([test.queries_for(difference, 0.8) for test in tests])
    assert seen([tested(round(enough)) for _ in range(2000)]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(("won", "is_better"), [(5, False), (6, True)])
def test_too_few_queries_that_differ_tell_nothing_however_sure_a_bootstrap_is(won, is_better):
    ours = np.zeros(200)
    ours[:won] = 1
    ones = np.ones(200)
    nothing = np.zeros(200)
    assert paired_differences({"m": (ours, ones)}, {"m": (nothing, ones)})["m"].low > 0
    test = _evidence(ours, nothing)
    assert (test.value > test.noise) == is_better
    assert ("cannot tell" in str(test)) != is_better
    lost = _evidence(nothing, ours)
    assert lost.value + 0.005 < lost.noise
    assert _evidence(nothing, nothing).noise == pytest.approx(6 / 200)
    assert math.isinf(Evidence.measured((nothing, nothing), (nothing, nothing), 1).noise)


def test_queries_of_the_same_words_are_one_piece_of_evidence():
    texts = ["red shoes", "Shoes,  RED!", "shoes red", "red shoe", "!?", "?!", "été", "ÉTÉ"]
    assert alike(pa.array(texts)).tolist() == [0, 0, 0, 1, 2, 3, 4, 4]
    draw = np.random.default_rng(2)
    alone = draw.choice([-1.0, 0.0, 1.0], 60)
    pieces = np.arange(180) // 3
    sides = [np.repeat(np.maximum(alone, 0), 3), np.repeat(np.maximum(-alone, 0), 3)]
    ours, base = (by_piece({"m": (gains, np.ones(180))}, pieces) for gains in sides)
    clustered = Evidence.measured(ours["m"], base["m"], 1)
    without = _evidence(*(gains[::3] for gains in sides))
    assert clustered.error == pytest.approx(without.error)
    assert clustered.num_queries == without.num_queries == 60
    naive = _evidence(*sides)
    assert naive.error == pytest.approx(without.error / math.sqrt(3), rel=0.01)
