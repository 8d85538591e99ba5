"""The comparison with other packages: its measuring, its choices, and its lexical rivals."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from scipy.sparse import random as random_matrix
from support import csr_of, query_table, rows_of, text_table

from benchmarks.peers import lexical, measuring
from benchmarks.peers.measuring import Contest, judged
from benchmarks.peers.rivals import Corpus, Rival
from benchmarks.peers.workers import pack, unpack
from ramen_ray.data.store.dataset import write_dataset
from ramen_ray.method.metrics.ranking import ratio

NUM_ADS, NUM_QUERIES = 300, 40


class Answers:
    """A fitted rival that gives the same answers whatever it is asked."""

    model_bytes = index_bytes = 0

    def __init__(self, ads: np.ndarray) -> None:
        self.ads = ads

    def answer(self, queries: Sequence[str], k: int) -> np.ndarray:
        return self.ads[: len(queries), :k]


@pytest.fixture
def drawn() -> tuple[Corpus, np.ndarray]:
    """Random clicks, filter pairs and rankings, some of which end early."""
    draw = np.random.default_rng(0)
    clicks = {
        split: csr_of([draw.choice(NUM_ADS, n % 7 + 1, False) for n in range(NUM_QUERIES)])
        for split in ("train", "test")
    }
    queries = {split: [f"query {n}" for n in range(NUM_QUERIES)] for split in clicks}
    ranked = np.stack([draw.permutation(NUM_ADS) for _ in range(NUM_QUERIES)])
    for row in range(0, NUM_QUERIES, 4):
        ranked[row, row:] = -1
    filters = np.stack([np.arange(NUM_QUERIES), ranked[:, 0]], axis=1)
    filters = filters[filters[:, 1] >= 0]
    ads = [f"ad {n}" for n in range(NUM_ADS)]
    return Corpus("drawn", queries, ads, clicks, {"test": filters}), ranked


def without_filters(corpus: Corpus, ranked: np.ndarray) -> list[list[int]]:
    dropped = {(row, ad) for row, ad in corpus.filters["test"].tolist()}
    rows = enumerate(ranked.tolist())
    return [[ad for ad in row if ad >= 0 and (q, ad) not in dropped] for q, row in rows]


def test_what_is_measured_equals_trec_eval_without_the_filter_pairs(drawn):
    corpus, ranked = drawn
    dropped = {(row, ad) for row, ad in corpus.filters["test"].tolist()}
    truth = [
        ads.tolist()
        for ads in np.split(corpus.clicks["test"].indices, corpus.clicks["test"].indptr[1:-1])
    ]
    qrel = {f"q{q}": {f"d{ad}": 1 for ad in ads} for q, ads in enumerate(truth)}
    run = {
        f"q{q}": {
            f"d{ad}": -float(n) for n, ad in enumerate(row) if ad >= 0 and (q, ad) not in dropped
        }
        for q, row in enumerate(ranked.tolist())
    }
    of_trec = {
        "P@1": "P_1",
        "P@3": "P_3",
        "P@5": "P_5",
        "N@5": "ndcg_cut_5",
        "R@10": "recall_10",
        "R@100": "recall_100",
    }
    evaluator = pytrec_eval.RelevanceEvaluator(qrel, {"P.1,3,5", "ndcg_cut.5", "recall.10,100"})
    by_query = evaluator.evaluate(run)
    found = judged(Answers(ranked), corpus, "test")
    for ours, theirs in of_trec.items():
        expected = [by_query.get(q, {}).get(theirs, 0.0) for q in qrel]
        assert ratio(found[ours]) == pytest.approx(np.mean(expected)), ours


def test_recall_of_tail_ads_and_propensity_scores_equal_a_loop(drawn):
    corpus, ranked = drawn
    judgement = corpus.judgement("test")
    found = judged(Answers(ranked), corpus, "test")
    gain = best = 0.0
    recalls = []
    truth = rows_of(corpus.clicks["test"])
    for kept, wanted in zip(without_filters(corpus, ranked), map(set, truth), strict=True):
        gain += sum(judgement.inverse[ad] for ad in kept[:5] if ad in wanted)
        best += sum(sorted((judgement.inverse[ad] for ad in wanted), reverse=True)[:5])
        tail = {ad for ad in wanted if judgement.groups["tail"][ad]}
        if tail:
            recalls.append(len(tail & set(kept[:10])) / len(tail))
    assert ratio(found["PSP@5"]) == pytest.approx(gain / best)
    assert ratio(found["tail/R@10"]) == pytest.approx(np.mean(recalls))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset in which a query shares a rare word with its ad; ad 3 is found by clicks only."""
    ads = ["red apples", "green pears", "blue plums", "mix"]
    held_out = query_table(["apples for sale", "pears for sale", "figs for sale"], [[0], [1], [3]])
    tables = {
        "ads": text_table("ad_id", ads),
        "queries/train": query_table(["ripe apples", "ripe plums", "dried figs"], [[0], [2], [3]]),
        "queries/validation": held_out,
        "queries/test": held_out,
    }
    write_dataset(tmp_path / "fruit", tables, name="fruit")
    return tmp_path / "fruit"


@pytest.mark.parametrize("name", lexical.RIVALS)
def test_lexical_rivals_find_ads_by_words_and_by_the_words_of_clicks(folder, name):
    corpus, rival = Corpus.read(folder), lexical.RIVALS[name]
    for settings in rival.settings:
        fitted = rival.fit(corpus, None, settings, 0, 1)
        answers = fitted.answer(corpus.queries["test"], 4)
        assert answers[:2, 0].tolist() == [0, 1]
        assert (answers[2, 0] == 3) == settings["with_clicks"]
        assert fitted.index_bytes > 0
        assert fitted.answer(["zzz"], 4).tolist() == [[-1] * 4]


def fit_constant(corpus, _prepared, settings, _seed, _threads) -> Answers:
    """Answer all queries with one ad."""
    return Answers(
        np.full((len(corpus.queries["test"]), 4), settings["ad"]) * [1, 0, 0, 0] - [0, 1, 1, 1]
    )


def test_validation_chooses_and_what_is_kept_is_not_run_again(folder, tmp_path, monkeypatch):
    asked = []

    def in_this_process(function, *arguments):
        asked.append(arguments[-1])
        return function(*arguments)

    monkeypatch.setattr(measuring, "in_own_process", in_this_process)
    monkeypatch.setattr(measuring, "STORE", tmp_path / "runs")
    rival = Rival(fit_constant, ({"ad": 2}, {"ad": 1}, {"ad": 2}))
    contest = Contest("toy", rival, folder, 60.0, 1)
    run = contest.run(seed=5)
    assert contest.settings() == {"ad": 1}
    assert run.value("P@1") == pytest.approx(1 / 3)
    assert asked == [("validation",)] * 2 + [("validation", "test")]  # equal settings are one try
    assert contest.run(seed=6).figures == run.figures
    assert len(asked) == 3


def test_the_search_ends_with_its_budget(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "in_own_process", lambda function, *of: function(*of))
    monkeypatch.setattr(measuring, "STORE", tmp_path / "runs")
    rival = Rival(fit_constant, ({"ad": 2}, {"ad": 1}))
    assert Contest("toy", rival, folder, 0.0, 1).settings() == {"ad": 2}


def test_matrices_arrive_as_they_were_sent():
    sent = random_matrix(5, 70, 0.2, format="csr", dtype=np.float32, random_state=0)
    got = unpack(pack(sent))
    assert got.shape == sent.shape and (got != sent).nnz == 0
