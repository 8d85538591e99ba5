"""Parts of the step: each takes its turn, and what it keeps comes back from a checkpoint."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Term, ramen_objective
from ramen_ray.method.sampling.batches import Sampler, Sources
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.parts import Part
from ramen_ray.method.sampling.training_data import QUERIES, TrainingData
from ramen_ray.method.training.checkpoints import restore_checkpoint, save_checkpoint
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import TrainState, train_steps


class Shift(Part):
    """A vector that is learnt beside the model and added to the queries for a term of its own."""

    name = "shift"

    def __init__(self, dim: int) -> None:
        self.vector = torch.zeros(dim, requires_grad=True)
        self.turns: list[str] = []

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        self.turns.append("before")
        moved = encoded.vectors(QUERIES, encoded.local.queries) + self.vector
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

    def restore(self, folder: Path, content: Tensor, sources: Sources) -> Sources:
        self.vector = content.requires_grad_()
        return sources


class Counting(Part):
    """Draws from other sources after each advance."""

    name = "counting"

    def advance(self, step: int, sources: Sources) -> Sources:
        return replace(sources, graphs={}) if step else sources


def test_a_part_from_outside_adds_to_a_batch_learns_and_is_restored(
    prepared_bag: Prepared, encoder_path: Path, tmp_path: Path
) -> None:
    """Its term pulls the mean query, moved by the vector, towards ones; the vector gets there."""
    task = [
        Term("pull", 1.0, lambda encoded: (encoded.added["moved"] - 1).square().sum(dim=1).mean())
    ]
    objective = ramen_objective(TripletLoss(0.3, 4), {}, {}, 1, task)
    sampler = Sampler(TrainingData.from_prepared(prepared_bag, []), 16, seed=3)

    def begin() -> tuple[TrainState, Shift]:
        model = DualEncoder(build_bag(str(encoder_path)))
        shift = Shift(model.dim)
        optimizer = build_optimizer(model.encoder, 0.0, 0.0)
        schedule = build_schedule(optimizer, 1, 100)
        parts = [shift, Counting()]
        return TrainState(model, optimizer, schedule, Sources({}), parts=parts), shift

    state, shift = begin()
    losses = [float(one) for one in train_steps(state, sampler, objective, 20)]
    assert shift.turns == ["before", "weigh", "after"] * 20
    assert state.weights.tolist() == [2.0]
    assert losses[-1] < losses[0] / 5
    save_checkpoint(tmp_path, state.model, state, 16, {})
    resumed, again = begin()
    restore_checkpoint(tmp_path, resumed)
    assert torch.equal(again.vector, shift.vector)
    assert list(train_steps(resumed, sampler, objective, 22)) == list(
        train_steps(state, sampler, objective, 22)
    )


def test_parts_prepare_what_the_next_steps_are_drawn_from(
    prepared_bag: Prepared, encoder_path: Path
) -> None:
    model = DualEncoder(build_bag(str(encoder_path)))
    optimizer = build_optimizer(model.encoder, 0.1, 0.0)
    data = TrainingData.from_prepared(
        prepared_bag, ramen_objective(TripletLoss(0.3, 4), {"links": 0.1}, {}).regularizers
    )
    sources = Sources(data.graphs)
    state = TrainState(
        model, optimizer, build_schedule(optimizer, 1, 9), sources, parts=[Counting()]
    )
    state.advance()
    assert state.sources == sources
    state.step = 3
    state.advance()
    assert state.sources.graphs == {}
