"""The comparison with other packages: its measuring, its choices, and its lexical rivals."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support import csr_of, query_table, text_table

from benchmarks.peers import rivals
from benchmarks.peers.rivals import Contest, Corpus, Rival, judged
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


def test_what_is_measured_leaves_out_the_filter_pairs(drawn):
    corpus, ranked = drawn
    dropped = {(row, ad) for row, ad in corpus.filters["test"].tolist()}
    kept = [
        [ad for ad in ads if (row, ad) not in dropped] for row, ads in enumerate(ranked.tolist())
    ]
    kept = np.array([[*ads, *[-1] * (NUM_ADS - len(ads))] for ads in kept])
    expected = corpus.ground_truth("test").by_query(kept)
    found = judged(Answers(ranked), corpus, "test")
    assert found.keys() == set(rivals.METRICS)
    for name, values in found.items():
        assert ratio(values) == pytest.approx(ratio(expected[name])), name


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

    monkeypatch.setattr(rivals, "in_own_process", in_this_process)
    monkeypatch.setattr(rivals, "STORE", tmp_path / "runs")
    rival = Rival(fit_constant, ({"ad": 2}, {"ad": 1}, {"ad": 2}))
    contest = Contest("toy", rival, folder, 60.0, 1)
    run = contest.run(seed=5)
    assert contest.settings() == {"ad": 1}
    assert run.value("P@1") == pytest.approx(1 / 3)
    assert asked == [("validation",)] * 2 + [("validation", "test")]  # equal settings are one try
    assert contest.run(seed=6).figures == run.figures
    assert len(asked) == 3
