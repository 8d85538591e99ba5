"""The comparison with other packages: its measuring, its choices, and its lexical rivals."""

from collections.abc import Sequence

import numpy as np
import pytest
from support import csr_of

from benchmarks.peers import rivals
from benchmarks.peers.rivals import Corpus, judged
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
