"""What a run answers by: all of its vectors and its last checkpoint, unless beyond noise."""

from types import SimpleNamespace

import numpy as np
import pytest

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.orchestration.run import worker as what_answers
from ramen_ray.orchestration.run.worker import PARTS, choose_answering

NUM_QUERIES = 40
NUM_ADS = 50
EARLIER = 7
LAST = 14


def _setup(right):
    """Measures models whose first answers are right for so many queries, by step and part."""

    def measure(model, split):
        assert split == "validation"
        number = right.get((model.step, model.part), 10)
        ads = np.where(np.arange(NUM_QUERIES) < number, np.arange(NUM_QUERIES), NUM_ADS - 1)
        return {"P@1": number / NUM_QUERIES}, (ads[:, None], None)

    return SimpleNamespace(
        plan=SimpleNamespace(metric="P@1"),
        config=None,
        inputs=SimpleNamespace(dataset=None),
        data=None,
        trained_model=lambda folder: SimpleNamespace(step=folder, classifiers=True, part=""),
        measure=measure,
    )


def _checkpoints(best_step):
    last, best = (SimpleNamespace(step=step, folder=step) for step in (LAST, best_step))
    return SimpleNamespace(last=lambda: last, best=lambda: best)


@pytest.mark.parametrize(
    ("right", "best_step", "expected"),
    [
        ({}, LAST, (LAST, "both")),
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
    monkeypatch.setattr(what_answers, "alike_queries", lambda *_: np.arange(NUM_QUERIES))
    answering = choose_answering(_setup(right), _checkpoints(best_step))
    assert (answering.checkpoint.step, answering.part) == expected
    assert answering.model.step == answering.checkpoint.step
    assert tuple(answering.validated) == PARTS
    assert answering.validated[answering.part][0]["P@1"] == right.get(expected, 10) / NUM_QUERIES
    monkeypatch.setattr(what_answers, "alike_queries", lambda *_: np.arange(NUM_QUERIES) // 10)
    of_four_pieces = choose_answering(_setup(right), _checkpoints(best_step))
    assert (of_four_pieces.checkpoint.step, of_four_pieces.part) == (LAST, "both")
