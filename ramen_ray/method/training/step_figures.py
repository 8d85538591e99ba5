"""The losses of training steps as they are told: of each step those that it has.

Regularisers have none in steps without anchors, and count ``every_steps`` times in the others (see
:class:`~ramen_ray.method.training.step.Objective`), which is undone here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.method.training.step import Objective

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class StepLosses:
    """The losses of consecutive steps.

    Attributes:
        objective: whose terms they are.
        values: (steps, terms) means over the batch, in the order of ``objective.terms``.
        known: (steps, terms) bool, whether a step has the term.
    """

    objective: Objective
    values: Floats
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, objective: Objective, first_step: int, terms: Floats) -> "StepLosses":
        """Take the ``terms`` (steps, terms) that the steps from ``first_step`` on optimised."""
        steps = range(first_step, first_step + len(terms))
        known = np.ones(terms.shape, dtype=bool)
        known[:, 1:] = [[objective.draws_anchors(step)] for step in steps]
        values = np.hstack([terms[:, :1], terms[:, 1:] / objective.every_steps])
        return cls(objective, values, known)

    @property
    def means(self) -> Floats:
        """The terms' means (terms,) over the steps that have them; 0 where none has."""
        sums = self.values.sum(axis=0, where=self.known, dtype=np.float64)
        return sums / np.maximum(self.known.sum(axis=0), 1)

    def figures(
        self, moved: Floats | None, queries_per_s: float
    ) -> tuple[list[str], Floats, NDArray[np.bool_]]:
        """Lay out all that is logged of the steps.

        Args:
            moved: (steps, terms) the weights of each step; None where they stay the objective's.
            queries_per_s: trained on meanwhile.

        Returns:
            names, values (steps, names), and which of them are known, of the same shape. The total
            is known of steps that have all terms.
        """
        terms, always = self.objective.terms, np.ones((len(self.values), 1), dtype=bool)
        weights = np.array([self.objective.weights]) if moved is None else moved
        total = (self.values * weights).sum(axis=1, keepdims=True)
        names = [f"loss/{name}" for name in (*terms, "total")] + ["throughput/queries_per_s"]
        values = [self.values, total, np.full(always.shape, queries_per_s)]
        known = [self.known, self.known.all(axis=1, keepdims=True), always]
        if moved is not None:
            names += [name.replace("R_", "lambda_", 1) for name in terms[1:]]
            values.append(moved[:, 1:])
            known.append(np.broadcast_to(always, moved[:, 1:].shape))
        return names, np.hstack(values), np.hstack(known)
