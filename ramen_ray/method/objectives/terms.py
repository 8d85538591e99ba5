"""What a run minimises: a weighted sum of named terms, each a function of the encoded batch.

RAMEN's terms pull nodes to their anchors. Shapes: b rows of this worker and B of the global batch,
L candidates of a pool, n nodes of a regulariser, P ads of a query, D width of an embedding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from ramen_ray.method.objectives.losses import LEFT_OUT, Loss
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.training_data import Regularizer

TASK = "task"


@dataclass(frozen=True)
class Term:
    """One part of the objective."""

    name: str
    weight: float
    # computes this worker's part of the term, a scalar, from an encoded batch: the sum over this
    # worker's rows, divided by the number of rows of the global batch
    loss: Callable[[EncodedBatch], Tensor]
    # the one whose anchors the batch must have; None if the term needs no anchors
    regularizer: Regularizer | None = None
    # N; the term is computed in every N-th step, and then counts N times. On average the objective
    # is the same, with fewer texts to encode
    every_steps: int = 1
    # those in which the term is computed at all; None for the whole training
    steps: range | None = None

    def is_due(self, step: int) -> bool:
        """Say whether the term is computed in a step."""
        return step % self.every_steps == 0 and (self.steps is None or step in self.steps)


@dataclass(frozen=True)
class Objective:
    """The terms of a run, in the order in which their losses are stacked."""

    terms: tuple[Term, ...]

    @property
    def names(self) -> list[str]:
        """The terms' names."""
        return [term.name for term in self.terms]

    @property
    def weights(self) -> list[float]:
        """The terms' weights."""
        return [term.weight for term in self.terms]

    @property
    def times(self) -> list[float]:
        """How many times each term counts in a step that computes it."""
        return [float(term.every_steps) for term in self.terms]

    @property
    def regularizers(self) -> list[Regularizer]:
        """The regularisers among the terms."""
        return [term.regularizer for term in self.terms if term.regularizer is not None]

    def regularizers_at(self, step: int) -> list[Regularizer]:
        """Return the regularisers that a step draws anchors for."""
        due = (term.regularizer for term in self.terms if term.is_due(step))
        return [regularizer for regularizer in due if regularizer is not None]

    def losses(self, encoded: EncodedBatch, step: int) -> Tensor:
        """Return this worker's part (terms,) of the losses of a step; 0 for terms that are not due.

        Summed over the workers, however many, this is each term's mean over the global batch.
        """
        nothing = encoded.embeddings_UD.new_zeros(())
        return torch.stack(
            [term.loss(encoded) if term.is_due(step) else nothing for term in self.terms]
        )


own_similarity: Callable[[EncodedBatch], Tensor] = attrgetter("own_similarity")


def task_term(
    loss: Loss,
    weight: float = 1.0,
    name: str = TASK,
    similarity_of: Callable[[EncodedBatch], Tensor] = own_similarity,
    steps: range | None = None,
) -> Term:
    """Build the term that ranks the ads clicked for a query above all others of the batch.

    ``similarity_of`` returns the similarities (b, L) of this worker's queries to the ads.
    """

    def share(encoded: EncodedBatch) -> Tensor:
        similarity_bL, clicked_bL = similarity_of(encoded), encoded.own_clicked_in_pool
        losses_b = loss(similarity_bL, encoded.own_places, clicked_bL)
        return losses_b.sum() / len(encoded.batch.queries)

    return Term(name, weight, share, steps=steps)


def similarity_to_other_texts(encoded: EncodedBatch) -> Tensor:
    """Return ``own_similarity`` (b, L) with ads of a query's own text, unless clicked, left out."""
    task, clicked_bL = encoded.inputs.task, encoded.own_clicked_in_pool
    has_own_text_bL = encoded.copied(task.rows)[:, None] == encoded.copied(task.candidates)
    return encoded.own_similarity.masked_fill(has_own_text_bL & ~clicked_bL, LEFT_OUT)


def regularizer_term(
    regularizer: Regularizer, weight: float, loss: Loss, every_steps: int = 1
) -> Term:
    """Build the term that ranks a node's own anchors above all others of the batch."""

    def share(encoded: EncodedBatch) -> Tensor:
        nodes = encoded.inputs.regularizers[regularizer]
        if not len(nodes.pool.ids):
            return encoded.embeddings_UD.new_zeros(())
        drawn_n1, linked_nL = encoded.copied(nodes.drawn), encoded.is_positive(nodes)
        losses_n = loss(encoded.similarities(nodes), drawn_n1, linked_nL)
        return losses_n.sum() / len(encoded.batch.anchors[regularizer].nodes)

    return Term(regularizer.name, weight, share, regularizer, every_steps)


def ramen_objective(
    loss: Loss,
    lambda_x: Mapping[str, float],
    lambda_z: Mapping[str, float],
    every_steps: int = 1,
    task: Sequence[Term] = (),
) -> Objective:
    """Build RAMEN's objective (section 3): the task, and R_x and R_z of each anchor set.

    A regulariser of weight 0 is none: its anchors are neither drawn nor encoded. Regularisers are
    due every ``every_steps``, by the same ``loss`` as the task, if ``task`` has no terms.
    """
    weights = {Regularizer(name, "query"): weight for name, weight in lambda_x.items()}
    weights |= {Regularizer(name, "ad"): weight for name, weight in lambda_z.items()}
    # by set, and R_x before R_z: draws depend on the order
    in_order = sorted(weights, key=lambda one: (one.anchor_set, one.side == "ad"))
    regularizers = [
        regularizer_term(one, weights[one], loss, every_steps) for one in in_order if weights[one]
    ]
    return Objective((*(task or [task_term(loss)]), *regularizers))
