"""The training step: take a batch, encode its distinct texts once, compute losses, update.

The losses of steps are summed over the workers, checked, and put into figures to log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.data.arrays import keyed_hash
from ramen_ray.errors import UserError
from ramen_ray.method.distributed import sum_over_workers, world
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.encoded import StepPart, encode
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.training.state import TrainState

DROPOUT_KEY = 1

Floats = NDArray[np.floating[Any]]


class StepMemoryError(RuntimeError):
    """A worker's share of a step does not fit into the memory of its device."""

    def __init__(self, step: int, num_texts: int, num_tokens: int) -> None:
        """Say which step (from 1), and how much this worker encodes in it."""
        super().__init__(step, num_texts, num_tokens)  # which it is pickled with
        self.step = step
        self.num_texts = num_texts

    def __str__(self) -> str:
        step, num_texts, num_tokens = self.args
        return (
            f"out of memory in step {step}: a worker's share of it has {num_texts:,} texts of "
            f"{num_tokens:,} tokens; lower training.global_batch_size or encoder.max_length, train "
            f"in more workers (workers.num_workers), or leave them more of each GPU "
            f"(workers.gpus_per_worker 1)"
        )


def train_steps(
    state: TrainState,
    sampler: Sampler,
    objective: Objective,
    stop: int,
    *,
    use_bf16: bool = False,
    max_gradient_norm: float | None = None,
) -> Iterator[Tensor]:
    """Train from ``state.step`` up to step ``stop``; yields this worker's losses (terms,) of each.

    The losses stay on the device, so that no step waits for them. All batches are drawn from what
    ``state.sources`` is at the beginning. Raises a StepMemoryError if a step does not fit.
    """
    device = next(state.model.parameters()).device
    weights = torch.tensor(objective.weights, device=device)
    times = torch.tensor(objective.times, device=device)
    steps = range(state.step, stop)
    # No thread makes them ahead: it would take Python's lock from the host as it feeds the GPU.
    for inputs in step_inputs(sampler, state.sources, objective, steps, device, state.parts):
        state.weights = weights
        # What a step drops depends on nothing else, so that a resumed run drops the same.
        key = sampler.seed, state.step, DROPOUT_KEY
        hashed = keyed_hash(key, np.array([world()[0]]))
        torch.manual_seed(int(hashed[0] >> np.uint64(1)))
        try:
            losses = _step(state, inputs, objective, times, use_bf16, max_gradient_norm)
        except torch.OutOfMemoryError as error:
            lengths = inputs.tokens.lengths
            number = state.step + 1
            raise StepMemoryError(number, len(lengths), int(lengths.sum())) from error
        state.step += 1
        yield losses


def _step(
    state: TrainState,
    inputs: StepInputs,
    objective: Objective,
    times: Tensor,
    use_bf16: bool,
    max_gradient_norm: float | None,
) -> Tensor:
    """Update the model by one step; returns its losses (terms,)."""
    encoded = encode(state.model, inputs, use_bf16)
    for part in state.parts:
        encoded = part.before(encoded)
    losses = objective.losses(encoded, state.step)
    for part in state.parts:
        state.weights = part.weigh(state.weights, encoded)
    state.optimizer.zero_grad(set_to_none=True)
    (losses * state.weights * times).sum().backward()
    if max_gradient_norm is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), max_gradient_norm)
    state.optimizer.step()
    state.schedule.step()
    for part in state.parts:
        part.after(encoded)
    return losses.detach()


def step_inputs(
    sampler: Sampler,
    sources: SamplingSources,
    objective: Objective,
    steps: range,
    device: torch.device,
    parts: Sequence[StepPart] = (),
) -> Iterator[StepInputs]:
    """Yield what each of ``steps`` computes on ``device``, prepared by the ``parts``."""
    for step in steps:
        local = sampler.draw(step, sources, objective.regularizers_at(step))
        inputs = StepInputs.from_local(sampler.data, local, sampler.batch_size, device)
        for part in parts:
            inputs = part.prepare(inputs)
        yield inputs


class DivergedError(UserError):
    """Losses or weights are no numbers any more, or infinite."""


def global_losses(steps: list[Tensor]) -> NDArray[np.float32]:
    """Sum the workers' parts of several steps' losses into global values (steps, terms)."""
    return sum_over_workers(torch.stack(steps)).float().cpu().numpy()


def check_losses(
    losses: NDArray[np.float32], names: Sequence[str], last_step: int, advice: str
) -> None:
    """Check that losses (steps, terms) up to step ``last_step`` are finite; or DivergedError."""
    bad = np.argwhere(~np.isfinite(losses))
    if len(bad):
        row, column = bad[0].tolist()
        step = last_step - len(losses) + 1 + row
        raise DivergedError(
            f"the loss {names[column]} is {losses[row, column]} in step {step}; {advice}"
        )


def check_weights(model: nn.Module, step: int, advice: str) -> None:
    """Check that a model's weights are finite after ``step`` steps; see :func:`check_losses`."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise DivergedError(f"the weights {name} are not finite after step {step}; {advice}")


@dataclass(frozen=True)
class StepLosses:
    """The losses of consecutive steps."""

    objective: Objective
    values: Floats  # (steps, terms) means over the batch, in the order of the objective
    is_due: NDArray[np.bool_]  # (steps, terms) bool, whether the term was due in the step

    @classmethod
    def from_terms(cls, objective: Objective, first_step: int, losses: Floats) -> "StepLosses":
        """Take the ``losses`` (steps, terms) of consecutive steps from ``first_step`` on."""
        steps = range(first_step, first_step + len(losses))
        is_due = [[term.is_due(step) for term in objective.terms] for step in steps]
        return cls(objective, losses, np.array(is_due, dtype=bool).reshape(losses.shape))

    @property
    def means(self) -> dict[str, float]:
        """The means by name of the terms that were due, over the steps where they were."""
        columns = zip(self.objective.names, self.values.T, self.is_due.T, strict=True)
        return {
            name: float(values[due].mean(dtype=np.float64))
            for name, values, due in columns
            if due.any()
        }

    def figures(
        self, moved: Floats | None, queries_per_s: float
    ) -> tuple[list[str], Floats, NDArray[np.bool_]]:
        """Return what is logged: names, values (steps, names), and which values were computed.

        ``moved`` (steps, terms) are the weights of each step; None if they do not move.
        """
        terms = self.objective.names
        always = np.ones((len(self.values), 1), dtype=bool)
        weights = np.array([self.objective.weights]) if moved is None else moved
        total = (self.values * weights).sum(axis=1, keepdims=True)
        names = [f"loss/{name}" for name in (*terms, "total")] + ["throughput/queries_per_s"]
        # the total of steps in which all terms were due
        values = [self.values, total, np.full(always.shape, queries_per_s)]
        is_known = [self.is_due, self.is_due.all(axis=1, keepdims=True), always]
        if moved is not None:
            is_moved = [term.regularizer is not None for term in self.objective.terms]
            names += [name.replace("R_", "lambda_", 1) for name in np.array(terms)[is_moved]]
            values.append(moved[:, is_moved])
            is_known.append(np.broadcast_to(always, values[-1].shape))
        return names, np.hstack(values), np.hstack(is_known)
