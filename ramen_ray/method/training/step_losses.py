"""The losses of steps: summed over the workers, checked, and put into figures to log."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.errors import UserError
from ramen_ray.method.distributed import sum_over_workers
from ramen_ray.method.objectives.terms import Objective

Floats = NDArray[np.floating[Any]]


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
