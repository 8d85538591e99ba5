"""The metrics by hand, against trec_eval, and against plain loops."""

from dataclasses import replace
from math import log, log2

import numpy as np
import pytest
import pytrec_eval
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import csr_of

from ramen_ray.data.store.judgements import Judgements
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.method.metrics.ranking import (
    group_metrics,
    inverse_propensities,
    judged_metrics,
    popularity_groups,
    query_metrics,
    ratios,
)

NUM_ADS = 12
DEPTH = 10
KS = (1, 3, 5, 10)


@st.composite
def predictions_and_clicks(draw):
    """Rankings of one length, cut off by -1 at different depths, and each query's clicks."""
    num_queries = draw(st.integers(1, 6))
    orders = [draw(st.permutations(range(NUM_ADS)))[:DEPTH] for _ in range(num_queries)]
    depths = [draw(st.integers(0, DEPTH)) for _ in range(num_queries)]
    topk = [
        [*order[:depth], *[-1] * (DEPTH - depth)]
        for order, depth in zip(orders, depths, strict=True)
    ]
    clicks = st.lists(st.integers(0, NUM_ADS - 1), min_size=1, unique=True)
    return np.array(topk), [sorted(draw(clicks)) for _ in range(num_queries)]


many_counts = st.lists(st.integers(0, 40), min_size=1, max_size=30).map(np.array)
counts_strategy = st.lists(st.integers(0, 40), min_size=NUM_ADS, max_size=NUM_ADS).map(np.array)


def test_inverse_propensities_follow_jain_et_al():
    counts = [0, 1, 7, 300]
    c = (log(1000) - 1) * (1.5 + 1) ** 0.55
    expected = [1 + c * (count + 1.5) ** -0.55 for count in counts]
    found = inverse_propensities(np.array(counts), 1000, 0.55, 1.5)
    assert found.tolist() == pytest.approx(expected)


@settings(max_examples=60)
@given(predictions_and_clicks())
def test_precision_recall_and_ndcg_equal_trec_eval(case):
    topk, truth = case
    cuts = ",".join(map(str, KS))
    qrel = {f"q{q}": {f"d{ad}": 1 for ad in ads} for q, ads in enumerate(truth)}
    run = {
        f"q{q}": {f"d{ad}": float(-rank) for rank, ad in enumerate(row) if ad >= 0}
        for q, row in enumerate(topk.tolist())
    }
    evaluator = pytrec_eval.RelevanceEvaluator(qrel, {f"{m}.{cuts}" for m in _OF_TREC.values()})
    by_query = evaluator.evaluate(run)
    per_query = query_metrics(topk, csr_of(truth), np.ones(NUM_ADS), KS)
    found = ratios(per_query)
    for k in KS:
        for ours, theirs in _OF_TREC.items():
            expected = [by_query.get(q, {}).get(f"{theirs}_{k}", 0.0) for q in qrel]
            assert per_query[f"{ours}@{k}"][0].tolist() == pytest.approx(expected)
            assert found[f"{ours}@{k}"] == pytest.approx(np.mean(expected))


_OF_TREC = {"P": "P", "R": "recall", "N": "ndcg_cut"}


@given(predictions_and_clicks(), counts_strategy)
def test_propensity_scores_equal_a_loop(case, counts):
    topk, truth = case
    inverse = inverse_propensities(counts, 100, 0.55, 1.5)
    found = ratios(query_metrics(topk, csr_of(truth), inverse, KS))
    for k in KS:
        gain = best_gain = dcg = best_dcg = 0.0
        for row, ads in zip(topk.tolist(), truth, strict=True):
            ideal = sum(1 / log2(rank + 2) for rank in range(min(k, len(ads))))
            for rank, ad in enumerate(row[:k]):
                if ad in ads:
                    gain += inverse[ad]
                    dcg += inverse[ad] / log2(rank + 2) / ideal
            for rank, best in enumerate(sorted((inverse[ad] for ad in ads), reverse=True)[:k]):
                best_gain += best
                best_dcg += best / log2(rank + 2) / ideal
        assert found[f"PSP@{k}"] == pytest.approx(gain / best_gain)
        assert found[f"PSN@{k}"] == pytest.approx(dcg / best_dcg)
        assert found[f"PSP@{k}"] <= 1 + 1e-12


@given(predictions_and_clicks(), counts_strategy)
def test_group_metrics_add_up_to_precision_and_equal_a_loop(case, counts):
    topk, truth = case
    groups = popularity_groups(counts)
    found = ratios(group_metrics(topk, csr_of(truth), groups, KS))
    overall = ratios(query_metrics(topk, csr_of(truth), np.ones(NUM_ADS), KS))
    for k in KS:
        assert sum(found[f"{name}/P@{k}"] for name in groups) == pytest.approx(overall[f"P@{k}"])
        for name, member in groups.items():
            recalls = []
            for row, ads in zip(topk.tolist(), truth, strict=True):
                wanted = {ad for ad in ads if member[ad]}
                if wanted:
                    recalls.append(len(wanted & set(row[:k])) / len(wanted))
            expected = sum(recalls) / len(recalls) if recalls else 0.0
            assert found[f"{name}/R@{k}"] == pytest.approx(expected)


@given(many_counts)
@example(np.array([0, 0]))
@example(np.array([0, 2, 1, 1, 1]))
@example(np.array([2, 1, 1, 1]))
@example(np.array([5, 4, 1, 0]))
@example(np.array([30, *[10] * 3, *[1] * 30]))  # thirds of many that are equal
def test_head_and_torso_are_the_fewest_click_counts_that_cover_a_third_and_two_thirds(counts):
    groups = popularity_groups(counts)
    assert (np.stack(list(groups.values())).sum(axis=0) == 1).all()
    assert groups["tail"][counts == 0].all()
    ranks = np.select([groups["head"], groups["torso"]], [2, 1], 0)
    by_count = sorted(zip(counts.tolist(), ranks.tolist(), strict=True))
    assert [rank for _, rank in by_count] == sorted(ranks.tolist())
    assert len(set(by_count)) == len(set(counts.tolist()))
    for part, share in ((groups["head"], 1 / 3), (groups["head"] | groups["torso"], 2 / 3)):
        assert counts[part].sum() >= share * counts.sum() - 1e-9
        without_least = counts[part & (counts > counts[part].min(initial=41))]
        assert not counts.any() or without_least.sum() < share * counts.sum()


@settings(max_examples=60)
@given(predictions_and_clicks(), st.data())
def test_what_judgements_say_equals_a_loop(case, data):
    topk, _ = case
    pairs = st.tuples(st.integers(0, len(topk) - 1), st.integers(0, NUM_ADS - 1))
    grades = data.draw(st.dictionaries(pairs, st.sampled_from([0.0, 0.25, 0.5, 1.0])))
    queries, ads = np.array([*grades], dtype=np.int64).reshape(-1, 2).T
    judged = Judgements(queries, ads, np.array([*grades.values()]))
    found = ratios(judged_metrics(topk, judged))
    for k in (1, 5, 10):
        low = num_judged = 0
        ndcg, recall = [], []
        for query, answers in enumerate(topk.tolist()):
            of_query = {ad: grade for (other, ad), grade in grades.items() if other == query}
            first = [of_query[ad] for ad in answers[:k] if ad in of_query]
            low += sum(grade < 0.5 for grade in first)
            num_judged += len(first)
            gains = [of_query[ad] for ad in answers if ad in of_query][:k]
            ideal = sorted(of_query.values(), reverse=True)[:k]
            if any(ideal):
                ndcg.append(_dcg(gains) / _dcg(ideal))
            if num_high := sum(grade >= 0.5 for grade in of_query.values()):
                recall.append(sum(grade >= 0.5 for grade in first) / num_high)
        expected = {
            f"bad@{k}": low / max(num_judged, 1),
            f"judged@{k}": num_judged / (k * len(topk)),
            f"judged/N@{k}": sum(ndcg) / max(len(ndcg), 1),
            f"judged/R@{k}": sum(recall) / max(len(recall), 1),
        }
        assert {name: found[name] for name in expected} == pytest.approx(expected)


def _dcg(gains):
    return sum(gain / log2(rank + 2) for rank, gain in enumerate(gains))


@pytest.mark.parametrize(("num_trained", "is_shown"), [(0, False), (1, False), (4, True)])
def test_train_queries_are_a_group_of_a_split_that_has_more_than_a_stray_one(num_trained, is_shown):
    num_queries = 200
    truth = csr_of([[query % NUM_ADS] for query in range(num_queries)])
    whole = GroundTruth.from_clicks(truth, np.ones(NUM_ADS, dtype=np.int64), 9, Propensity())
    trained = np.arange(num_queries) < num_trained
    found = replace(whole, trained=trained).metrics(np.zeros((num_queries, 1), dtype=np.int64))
    assert ("seen/P@1" in found, "new/P@1" in found) == (is_shown, is_shown)
    if is_shown:
        assert found["seen/P@1"] == 1 / num_trained  # the first query's ad is what all are shown
