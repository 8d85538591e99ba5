"""Parts of the step: each takes its turn, and what it keeps comes back from a checkpoint."""

from dataclasses import replace
from pathlib import Path

import torch
from short_runs import Run, build_sampler
from torch import Tensor

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Term, ramen_objective
from ramen_ray.method.sampling.batches import DrawState
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart
from ramen_ray.method.training.state import restore_checkpoint


class Shift(StepPart):
    """A vector that is learnt beside the model and added to the queries for a term of its own."""

    name = "shift"

    def __init__(self, dim: int) -> None:
        self.vector = torch.zeros(dim, requires_grad=True)
        self.turns: list[str] = []

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        self.turns.append("before")
        moved = encoded.queries_bD + self.vector
        return replace(encoded, added={**encoded.added, "moved": moved})

    def weigh(self, weights: Tensor, encoded: EncodedBatch) -> Tensor:
        self.turns.append("weigh")
        assert self.vector.grad is None
        return 2 * weights

    def after(self, encoded: EncodedBatch) -> None:
        self.turns.append("after")
        assert self.vector.grad is not None
        self.vector = (self.vector.detach() - 0.1 * self.vector.grad).requires_grad_()

    def save(self, folder: Path) -> Tensor:
        return self.vector.detach()

    def restore(self, folder: Path, content: Tensor, draws: DrawState) -> DrawState:
        self.vector = content.requires_grad_()
        return draws


def test_a_part_from_outside_adds_to_a_batch_learns_and_is_restored(
    prepared_bag: Prepared, encoder_path: Path, tmp_path: Path
) -> None:
    """Its term pulls the mean query, moved by the vector, towards ones; the vector gets there."""
    task = [
        Term("pull", 1.0, lambda encoded: (encoded.added["moved"] - 1).square().sum(dim=1).mean())
    ]
    objective = ramen_objective(TripletLoss(0.3, 4), {}, {}, 1, task)
    sampler = build_sampler(prepared_bag, objective)

    def begin() -> tuple[Run, Shift]:
        encoder = build_bag(str(encoder_path))
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
