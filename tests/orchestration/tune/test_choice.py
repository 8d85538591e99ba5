"""Which candidate is taken, and whether what is told of it is true."""

import math

import numpy as np
import pytest

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics import comparison
from ramen_ray.orchestration.tune.choice import choose, expected_best, half_of_validation, mean

NUM_QUERIES = 400
EVEN = np.arange(NUM_QUERIES) % 2 == 0


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch):
    """Let bootstraps draw a tenth of their samples, which take most of the time."""
    monkeypatch.setattr(comparison, "NUM_SAMPLES", 200)


def _runs(*hits):
    return [{"P@1": (np.array(run, dtype=float), np.ones(NUM_QUERIES))} for run in hits]


def _drawn(chances, draw, luck, num_seeds):
    """Draw the hits of candidates, whose chances differ by luck from seed to seed."""
    return {
        name: _runs(
            *(
                draw.random(NUM_QUERIES) < chance + luck * draw.standard_normal()
                for _ in range(num_seeds)
            )
        )
        for name, chance in chances.items()
    }


@pytest.mark.parametrize(("luck", "num_seeds"), [(0.0, 1), (0.03, 2)])
def test_where_nothing_differs_the_default_stays_and_figures_are_true(luck, num_seeds):
    draw = np.random.default_rng(0)
    half = draw.random(NUM_QUERIES) < 0.5
    chances = {**{f"candidate {number}": 0.5 for number in range(8)}, "default": 0.5}
    told = []
    highest = []
    kept = []
    for _ in range(30):
        scores = _drawn(chances, draw, luck, num_seeds)
        choice = choose(scores, half, "P@1", "default")
        said = choice.sentences[0]
        told.append(float(said.partition("expect ")[2].partition(",")[0]) / 100)
        highest.append(max(mean(runs, "P@1") for runs in scores.values()))
        kept.append(choice.chosen == "default")
    noise = np.std(told) / math.sqrt(len(told))
    assert abs(np.mean(told) - 0.5) < 3 * noise
    assert np.mean(highest) - 0.5 > 5 * noise, "the figure that chose flatters"
    assert np.mean(kept) > 0.85


def test_a_better_candidate_is_taken_and_told_with_its_own_figure():
    base = np.arange(NUM_QUERIES) % 4 == 0
    better = base | (np.arange(NUM_QUERIES) % 3 == 0)
    scores = {"default": _runs(base, base), "a": _runs(better, better), "b": _runs(base, base)}
    choice = choose(scores, EVEN, "P@1", "default")
    assert (choice.chosen, mean(choice.expected, "P@1")) == ("a", better.mean())
    gain = choice.gains(scores["default"])["P@1"]
    assert gain.low > 0 and gain.value == pytest.approx(better.mean() - base.mean())
    assert ["default" in said for said in choice.sentences] == [False, False, True]
    late = choose({"b": scores["b"], "a": scores["a"]}, EVEN, "P@1", "default")
    assert late.chosen == "a" and "default" in late.sentences[-1]
    alone = choose({"default": scores["default"]}, EVEN, "P@1", "default")
    assert alone.chosen == "default" and mean(alone.expected, "P@1") == base.mean()


@pytest.mark.parametrize("is_by_seed", [False, True])
def test_luck_on_one_half_or_in_one_seed_chooses_nothing(is_by_seed):
    base = np.arange(NUM_QUERIES) % 4 < 2
    lucky = base | EVEN, base | ~EVEN
    scores = {"default": _runs(base), "a": _runs(lucky[0]), "b": _runs(lucky[1])}
    if is_by_seed:
        high = base | (np.arange(NUM_QUERIES) % 5 == 0)
        scores = {"default": _runs(base, base), "a": _runs(high, base), "b": _runs(base, high)}
    choice = choose(scores, EVEN, "P@1", "default")
    assert choice.chosen == "default"
    assert f"expect {100 * base.mean():.2f}" in choice.sentences[0]


def test_queries_of_the_same_words_are_in_one_half():
    half = half_of_validation(Dataset("datasets/rdocs"), 0)
    texts = Dataset("datasets/rdocs").read("queries/validation").sort_by("query_id")["text"]
    halves = {}
    for text, is_first in zip(texts.to_pylist(), half, strict=True):
        halves.setdefault(text.lower(), set()).add(bool(is_first))
    assert all(len(where) == 1 for where in halves.values())
    assert 0.4 < half.mean() < 0.6


def test_the_best_of_many_draws():
    assert expected_best(2) == pytest.approx(1 / math.sqrt(math.pi), abs=0.02)
