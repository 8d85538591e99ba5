"""Comparisons of two models against scipy's bootstrap and plain loops."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from support import csr_of
from test_metrics import KS, counts_strategy, predictions_and_truths

from ramen_ray.method.comparison import mean_over_seeds, paired_differences
from ramen_ray.method.metrics import clicks_on, query_metrics, ranking_metrics, ratio


def test_intervals_are_those_of_scipys_paired_bootstrap():
    draw = np.random.default_rng(3)
    possible = draw.uniform(0.5, 3.0, size=400)
    base = possible * draw.uniform(size=400)
    ours = np.clip(base + draw.normal(0.1, 0.4, size=400), 0, possible)
    found = paired_differences({"m": (ours, possible)}, {"m": (base, possible)})["m"]
    assert found.value == pytest.approx((ours.sum() - base.sum()) / possible.sum())
    theirs = scipy.stats.bootstrap(
        (ours, base, possible),
        lambda o, b, p, axis: (o.sum(axis) - b.sum(axis)) / p.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert [found.low, found.high] == pytest.approx(list(theirs), abs=0.07 * width)


def test_a_model_does_not_differ_from_itself_nor_a_shift_from_a_shift():
    possible = np.ones(30)
    base = np.random.default_rng(0).uniform(size=30)
    same = paired_differences({"m": (base, possible)}, {"m": (base, possible)})["m"]
    assert same == (0, 0, 0)
    shifted = paired_differences({"m": (base + 0.25, possible)}, {"m": (base, possible)})["m"]
    assert shifted == pytest.approx((0.25, 0.25, 0.25))


def test_a_metric_that_no_query_counts_in_is_zero():
    nothing = {"m": (np.zeros(3), np.zeros(3))}
    assert paired_differences(nothing, nothing)["m"] == (0, 0, 0)


def test_seeds_are_averaged_query_by_query():
    possible = np.array([2.0, 1.0])
    runs = [{"m": (np.array([1.0, 0.0]), possible)}, {"m": (np.array([2.0, 1.0]), possible)}]
    gained, kept = mean_over_seeds(runs)["m"]
    assert gained.tolist() == [1.5, 0.5]
    assert kept.tolist() == possible.tolist()


@given(predictions_and_truths(), counts_strategy)
def test_clicks_on_a_group_measure_like_queries_that_have_no_others(case, counts):
    topk, truth = case
    member = counts > np.median(counts)
    on_group = [[ad for ad in ads if member[ad]] for ads in truth]
    asked = [query for query, ads in enumerate(on_group) if ads]
    inverse = 1.0 + counts
    found = query_metrics(topk, clicks_on(csr_of(truth), member), inverse, KS)
    if not asked:
        assert all(ratio(values) == 0 for values in found.values())
        return
    alone = ranking_metrics(topk[asked], csr_of([on_group[q] for q in asked]), inverse, KS)
    for name, expected in alone.items():
        share = len(asked) / len(truth) if name.startswith("P@") else 1
        assert ratio(found[name]) == pytest.approx(expected * share)
