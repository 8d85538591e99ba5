"""The losses of training steps as they are logged: for each step, the terms that were due.

A term counts ``every_steps`` times when it is due (see
:class:`~ramen_ray.method.objectives.terms.Term`); the logged values are divided by this factor.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.method.objectives.terms import Objective

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class StepLosses:
    """The losses of consecutive steps.

    Attributes:
        objective: the objective of the terms.
        values: (steps, terms) means over the batch, in the order of the objective.
        known: (steps, terms) bool, whether the term was due in the step.
    """

    objective: Objective
    values: Floats
    known: NDArray[np.bool_]

    @classmethod
    def from_terms(cls, objective: Objective, first_step: int, losses: Floats) -> "StepLosses":
        """Convert the ``losses`` (steps, terms) of consecutive steps from ``first_step`` on."""
        steps = range(first_step, first_step + len(losses))
        known = [[term.is_due(step) for term in objective.terms] for step in steps]
        times = np.array([term.every_steps for term in objective.terms], dtype=losses.dtype)
        return cls(objective, losses / times, np.array(known, dtype=bool).reshape(losses.shape))

    @property
    def means(self) -> dict[str, float]:
        """The terms' means by name, over the steps where they were due; 0 if there is none."""
        sums = self.values.sum(axis=0, where=self.known, dtype=np.float64)
        means = sums / np.maximum(self.known.sum(axis=0), 1)
        return dict(zip(self.objective.names, means.tolist(), strict=True))

    def figures(
        self, moved: Floats | None, queries_per_s: float
    ) -> tuple[list[str], Floats, NDArray[np.bool_]]:
        """Return all figures of the steps that are logged.

        Args:
            moved: (steps, terms) the weights of each step; None if they do not move.
            queries_per_s: training speed during these steps.

        Returns:
            names, values (steps, names), and which of them are known, of the same shape. The total
            is known for steps in which all terms were due.
        """
        terms, always = self.objective.names, np.ones((len(self.values), 1), dtype=bool)
        weights = np.array([self.objective.weights]) if moved is None else moved
        total = (self.values * weights).sum(axis=1, keepdims=True)
        names = [f"loss/{name}" for name in (*terms, "total")] + ["throughput/queries_per_s"]
        values = [self.values, total, np.full(always.shape, queries_per_s)]
        known = [self.known, self.known.all(axis=1, keepdims=True), always]
        if moved is not None:
            regularized = [
                column
                for column, term in enumerate(self.objective.terms)
                if term.regularizer is not None
            ]
            names += [terms[column].replace("R_", "lambda_", 1) for column in regularized]
            values.append(moved[:, regularized])
            known.append(np.broadcast_to(always, values[-1].shape))
        return names, np.hstack(values), np.hstack(known)
