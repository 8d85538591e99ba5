"""Comparisons of two models against scipy's bootstrap and plain loops."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from support import csr_of
from test_metrics import KS, counts_strategy, predictions_and_clicks

from ramen_ray.method.metrics.comparison import (
    paired_differences,
    paired_differences_over_seeds,
)
from ramen_ray.method.metrics.ranking import clicks_on, query_metrics, ratio, ratios


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


def test_intervals_over_seeds_are_those_of_drawing_runs_and_queries_one_by_one():
    draw = np.random.default_rng(5)
    possible = draw.integers(0, 4, size=(3, 60)).astype(float)  # a split lacks some queries
    noise = np.array([[0.0], [0.1], [-0.2]])  # of a pair's seed
    base = possible * draw.uniform(size=possible.shape)
    ours = base + possible * (noise + draw.normal(0.1, 0.1, size=possible.shape))
    sides = [[{"m": run} for run in zip(side, possible, strict=True)] for side in (ours, base)]
    found = paired_differences_over_seeds(*sides)["m"]
    sampled = []
    for _ in range(4000):
        cells = np.ix_(draw.integers(3, size=3), draw.integers(60, size=60))
        sampled.append((ours[cells] - base[cells]).sum() / possible[cells].sum())
    low, high = np.quantile(sampled, [0.025, 0.975])
    assert found.value == pytest.approx((ours - base).sum() / possible.sum())
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.07 * (high - low))
    alone = paired_differences_over_seeds([sides[0][0]], [sides[1][0]])
    assert alone == paired_differences(sides[0][0], sides[1][0])
    assert high - low > 1.5 * (alone["m"].high - alone["m"].low)


@given(predictions_and_clicks(), counts_strategy)
def test_clicks_on_a_group_measure_like_queries_that_have_no_others(case, counts):
    topk, truth = case
    member = counts > np.median(counts)
    on_group = [[ad for ad in ads if member[ad]] for ads in truth]
    with_clicks = [query for query, ads in enumerate(on_group) if ads]
    inverse = 1.0 + counts
    found = query_metrics(topk, clicks_on(csr_of(truth), member), inverse, KS)
    if not with_clicks:
        assert all(ratio(values) == 0 for values in found.values())
        return
    alone = ratios(
        query_metrics(topk[with_clicks], csr_of([on_group[q] for q in with_clicks]), inverse, KS)
    )
    for name, expected in alone.items():
        share = len(with_clicks) / len(truth) if name.startswith("P@") else 1
        assert ratio(found[name]) == pytest.approx(expected * share)
