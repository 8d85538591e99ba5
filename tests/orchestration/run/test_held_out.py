"""What a run answers by: all of its vectors and its last checkpoint, unless beyond noise."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.orchestration.run import worker as what_answers
from ramen_ray.orchestration.run.worker import PARTS, choose_answering

NUM_QUERIES, NUM_ADS, EARLIER, LAST = 40, 50, 7, 14


@dataclass
class _Checkpoint:
    step: int

    @property
    def folder(self) -> int:
        return self.step


@dataclass
class _Checkpoints:
    best_step: int

    def last(self) -> _Checkpoint:
        return _Checkpoint(LAST)

    def best(self) -> _Checkpoint:
        return _Checkpoint(self.best_step)


@dataclass
class _Model:
    step: int
    classifiers: Any = True
    part: str = ""


class _Plan:
    metric = "P@1"


class _Setup:
    """Measures models whose first answers are right for so many queries, by step and part."""

    plan = _Plan()
    config = SimpleNamespace(dataset="")
    data = None

    def __init__(self, right: dict[tuple[int, str], int]) -> None:
        self.right = right

    def trained_model(self, folder: int) -> _Model:
        return _Model(folder)

    def measure(self, model: _Model, split: str) -> Any:
        assert split == "validation"
        right = self.right.get((model.step, model.part), 10)
        ads = np.where(np.arange(NUM_QUERIES) < right, np.arange(NUM_QUERIES), NUM_ADS - 1)
        return {"P@1": right / NUM_QUERIES}, (ads[:, None], None)


@pytest.mark.parametrize(
    ("right", "best_step", "expected"),
    [
        ({}, LAST, (LAST, "both")),
        ({(LAST, "encoder"): 13}, LAST, (LAST, "both")),
        ({(LAST, "encoder"): 20, (LAST, "classifier"): 25}, LAST, (LAST, "classifier")),
        ({(EARLIER, "both"): 14}, EARLIER, (LAST, "both")),
        ({(EARLIER, "both"): 25}, EARLIER, (EARLIER, "both")),
        ({(LAST, "encoder"): 20, (EARLIER, "encoder"): 30}, EARLIER, (EARLIER, "encoder")),
        ({(EARLIER, "encoder"): 40}, EARLIER, (LAST, "both")),  # the part is chosen first
    ],
)
def test_all_vectors_of_the_last_checkpoint_answer_unless_others_are_better_beyond_noise(
    right, best_step, expected, monkeypatch
):
    truth = Csr.from_pairs(np.arange(NUM_QUERIES), np.arange(NUM_QUERIES), NUM_QUERIES)
    counts = np.ones(NUM_ADS, dtype=np.int64)
    ground_truth = GroundTruth.from_clicks(truth, counts, NUM_QUERIES, Propensity())
    monkeypatch.setattr(what_answers, "build_ground_truth", lambda *_: ground_truth)
    monkeypatch.setattr(what_answers, "Dataset", lambda _: None)
    monkeypatch.setattr(what_answers, "alike_queries", lambda *_: np.arange(NUM_QUERIES))
    answering = choose_answering(_Setup(right), _Checkpoints(best_step))
    assert (answering.checkpoint.step, answering.part) == expected
    assert answering.model.step == answering.checkpoint.step
    assert tuple(answering.validated) == PARTS
    assert answering.validated[answering.part][0]["P@1"] == right.get(expected, 10) / NUM_QUERIES
    monkeypatch.setattr(what_answers, "alike_queries", lambda *_: np.arange(NUM_QUERIES) // 10)
    of_four_pieces = choose_answering(_Setup(right), _Checkpoints(best_step))
    assert (of_four_pieces.checkpoint.step, of_four_pieces.part) == (LAST, "both")
