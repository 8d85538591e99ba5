"""Parts of the step, and its losses: what each adds and keeps, is logged, and diverges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import Run, build_sampler

from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Term, ramen_objective
from ramen_ray.method.sampling.encoded import StepPart
from ramen_ray.method.training.state import restore_checkpoint
from ramen_ray.method.training.step import (
    DivergedError,
    StepLosses,
    check_losses,
    check_weights,
)


class Shift(StepPart):
    """A vector that is learnt beside the model and added to the queries for a term of its own."""

    name = "shift"

    def __init__(self, dim):
        self.vector = torch.zeros(dim, requires_grad=True)
        self.turns = []

    def before(self, encoded):
        self.turns.append("before")
        moved = encoded.queries_bD + self.vector
        return replace(encoded, added={**encoded.added, "moved": moved})

    def weigh(self, weights, encoded):
        self.turns.append("weigh")
        assert self.vector.grad is None
        return 2 * weights

    def after(self, encoded):
        self.turns.append("after")
        assert self.vector.grad is not None
        self.vector = (self.vector.detach() - 0.1 * self.vector.grad).requires_grad_()

    def save(self, folder):
        return self.vector.detach()

    def restore(self, folder, content, sources):
        self.vector = content.requires_grad_()
        return sources


def test_a_part_from_outside_adds_learns_and_is_restored(prepared_bag, encoder_path, tmp_path):
    """Its term pulls the mean query, moved by the vector, towards ones; the vector gets there."""
    task = [
        Term("pull", 1.0, lambda encoded: (encoded.added["moved"] - 1).square().sum(dim=1).mean())
    ]
    objective = ramen_objective(TripletLoss(0.3, 4), {}, {}, 1, task)
    sampler = build_sampler(prepared_bag, objective)

    def begin():
        encoder = build_bag(encoder_path)
        shift = Shift(encoder.dim)
        return Run(encoder, sampler, objective, [shift], (0.0, 0.0, None)), shift

    run, shift = begin()
    losses = run.train(20)
    assert shift.turns == ["before", "weigh", "after"] * 20
    assert run.state.weights.tolist() == [2.0]
    assert losses[-1][0] < losses[0][0] / 5
    run.save(tmp_path)
    resumed, again = begin()
    restore_checkpoint(tmp_path, resumed.state)
    assert torch.equal(again.vector, shift.vector)
    assert resumed.train(22) == run.train(22)


LOSS = TripletLoss(0.3, 4)
OBJECTIVE = ramen_objective(LOSS, {"links": 0.5}, {"links": 0.2}, every_steps=2)


def test_regularisers_are_logged_of_steps_with_anchors_only():
    terms = np.array([[1, 0, 0], [2, 3, 2], [3, 0, 0], [5, 1, 4]], dtype=np.float32)  # 1 to 4
    losses = StepLosses.from_terms(OBJECTIVE, 1, terms)
    expected = {"task": 11 / 4, "R_x/links": (3 + 1) / 2, "R_z/links": (2 + 4) / 2}
    assert losses.means == pytest.approx(expected)
    assert StepLosses.from_terms(OBJECTIVE, 1, terms[:1]).means == {"task": 1.0}
    names, values, known = losses.figures(None, 80.0)
    logged = [
        {name: value for name, value, is_known in zip(names, *row, strict=True) if is_known}
        for row in zip(values.tolist(), known, strict=True)
    ]
    rate = {"throughput/queries_per_s": 80.0}
    assert logged[0] == {"loss/task": 1.0, **rate}
    of_terms = {"loss/task": 2.0, "loss/R_x/links": 3.0, "loss/R_z/links": 2.0}
    total = pytest.approx(2 + 0.5 * 3 + 0.2 * 2)
    assert logged[1] == {**of_terms, "loss/total": total, **rate}


def test_the_first_step_without_finite_losses_is_named():
    losses = np.ones((5, 2), dtype=np.float32)
    check_losses(losses, ["task", "R_x/links"], 50, "do less")
    losses[2, 1] = np.nan
    losses[4, 0] = np.inf
    with pytest.raises(DivergedError, match=r"R_x/links .* step 48"):
        check_losses(losses, ["task", "R_x/links"], 50, "do less")


def test_weights_are_checked_before_they_are_kept():
    model = torch.nn.Linear(2, 2)
    check_weights(model, 3, "do less")
    torch.nn.init.constant_(model.bias, torch.inf)
    with pytest.raises(DivergedError, match=r"bias .* step 3"):
        check_weights(model, 3, "do less")
