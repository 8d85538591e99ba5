"""What a run minimises: a weighted sum of named terms, each a function of the encoded batch.

RAMEN's terms pull nodes to their anchors; UniDEC's (section 3) also go from ads to queries, and by
classifiers. Shapes: b rows of this worker and B of the global batch, L candidates of a pool, l this
worker's share of them, n nodes of a regulariser, P ads of a query, D width of an embedding, d of a
classifier.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ramen_ray.method.distributed import gather_own, own_range, to_device
from ramen_ray.method.model.heads import unit
from ramen_ray.method.objectives.losses import Loss
from ramen_ray.method.sampling.encoded import LEFT_OUT, EncodedBatch
from ramen_ray.method.sampling.training_data import Regularizer

TASK = "task"
REVERSE = "task_reverse"
CLASSIFIER = "classifier"
CLASSIFIER_REVERSE = "classifier_reverse"
BCE = "classifier_bce"
CLASSIFIERS = "classifiers_Ld"
OF_CLASSIFIERS = "classifier_queries_Ud"
"""What is added to a batch: (L, d) float32, the classifiers of the pool; (U, d) float32, the
vectors of its texts, not normalised, that are compared with them."""
NO_NEGATIVES = "no_negatives_bL"
"""What may be added to a batch: (b, L) bool, ads that are neither positives nor negatives of this
worker's queries."""


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
    # whether the backward pass computes each term again, so that memory holds the arrays of one,
    # which are of all rows and all candidates
    is_frugal: bool = False

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
            [self._loss(term, encoded) if term.is_due(step) else nothing for term in self.terms]
        )

    def _loss(self, term: Term, encoded: EncodedBatch) -> Tensor:
        if not self.is_frugal:
            return term.loss(encoded)
        _ = encoded.own_similarity  # that terms share, so it is made once
        loss: Tensor = checkpoint(term.loss, encoded, use_reentrant=False, preserve_rng_state=False)
        return loss


own_similarity: Callable[[EncodedBatch], Tensor] = attrgetter("own_similarity")


def task_term(
    loss: Loss,
    weight: float = 1.0,
    name: str = TASK,
    similarity_of: Callable[[EncodedBatch], Tensor] = own_similarity,
    steps: range | None = None,
) -> Term:
    """Build the term that ranks the ads clicked for a query above all others of the batch.

    ``similarity_of`` returns the similarities (b, L) of this worker's queries to the ads, LEFT_OUT
    of those that do not count.
    """

    def ads_loss(encoded: EncodedBatch) -> Tensor:
        similarity_bL = _of_rivals(encoded, similarity_of(encoded))
        clicked_bL = encoded.own_clicked_in_pool & (similarity_bL > LEFT_OUT)
        losses_b = loss(similarity_bL, encoded.own_places, clicked_bL)
        return losses_b.sum() / len(encoded.batch.queries)

    return Term(name, weight, ads_loss, steps=steps)


def similarity_to_other_texts(encoded: EncodedBatch) -> Tensor:
    """Return ``own_similarity`` (b, L) without unclicked ads that have the query's own text."""
    task = encoded.inputs.task
    clicked_bL = encoded.own_clicked_in_pool
    has_own_text_bL = encoded.copied(task.rows)[:, None] == encoded.copied(task.candidates)
    return encoded.own_similarity.masked_fill(has_own_text_bL & ~clicked_bL, LEFT_OUT)


def reverse_term(loss: Loss, weight: float) -> Term:
    """Build the term that ranks the queries with a click on an ad above all others of the batch."""

    def queries_loss(encoded: EncodedBatch) -> Tensor:
        clicked_LB = encoded.clicked_in_pool.T
        if encoded.inputs.is_encoded is not None:
            clicked_LB = clicked_LB & encoded.copied(encoded.inputs.is_encoded)[:, None]
        return _reverse_loss(loss, encoded, encoded.all_queries_BD, encoded.ads_LD, clicked_LB)

    return Term(REVERSE, weight, queries_loss)


def classifier_term(loss: Loss, weight: float, by_cosine: bool = False) -> Term:
    """Build the term that ranks the classifiers of a query's ads above all others of the pool.

    ``by_cosine`` compares by cosines instead of inner products, for losses with a margin.
    """

    def similarity(encoded: EncodedBatch) -> Tensor:
        queries_bd = _asking(encoded, encoded.inputs.task.rows)
        classifiers_Ld = encoded.added[CLASSIFIERS]
        if by_cosine:
            queries_bd = unit(queries_bd)
            classifiers_Ld = unit(classifiers_Ld)
        return queries_bd @ classifiers_Ld.T

    return task_term(loss, weight, CLASSIFIER, similarity)


def classifier_reverse_term(loss: Loss, weight: float) -> Term:
    """Build :func:`reverse_term` for classifiers: queries are ranked for each of them."""

    def queries_loss(encoded: EncodedBatch) -> Tensor:
        queries_Bd = _asking(encoded, encoded.inputs.queries)
        clicked_LB = encoded.clicked_in_pool.T
        return _reverse_loss(loss, encoded, queries_Bd, encoded.added[CLASSIFIERS], clicked_LB)

    return Term(CLASSIFIER_REVERSE, weight, queries_loss)


def bce_term(temperature: float, weight: float) -> Term:
    """Build the term of binary cross-entropy: which ads of the pool were clicked for a query."""

    def entropy(encoded: EncodedBatch) -> Tensor:
        logits_bL = (
            _asking(encoded, encoded.inputs.task.rows) @ encoded.added[CLASSIFIERS].T / temperature
        )
        logits_bL = _of_rivals(encoded, logits_bL)
        clicked_bL = encoded.own_clicked_in_pool.to(logits_bL.dtype)
        total = functional.binary_cross_entropy_with_logits(logits_bL, clicked_bL, reduction="sum")
        return total / (len(encoded.batch.queries) * len(encoded.ad_pool.ids))

    return Term(BCE, weight, entropy)


def _of_rivals(encoded: EncodedBatch, similarity_bL: Tensor) -> Tensor:
    """Return similarities (b, L) of this worker's queries without what is no negative of them."""
    is_none_bL = encoded.added.get(NO_NEGATIVES)
    return similarity_bL if is_none_bL is None else similarity_bL.masked_fill(is_none_bL, LEFT_OUT)


def own_not_rivals(encoded: EncodedBatch) -> Tensor:
    """Return (b, L) bool, which ads are clicked for this worker's queries, or no negatives."""
    clicked_bL = encoded.own_clicked_in_pool
    is_none_bL = encoded.added.get(NO_NEGATIVES)
    return clicked_bL if is_none_bL is None else clicked_bL | is_none_bL


def not_rivals(encoded: EncodedBatch) -> Tensor:
    """Return :func:`own_not_rivals` of all workers' queries (B, L), by a collective of them."""
    if NO_NEGATIVES not in encoded.added:
        return encoded.clicked_in_pool
    return gather_own(own_not_rivals(encoded), len(encoded.batch.queries))


def _reverse_loss(
    loss: Loss, encoded: EncodedBatch, queries_BD: Tensor, ads_LD: Tensor, clicked_LB: Tensor
) -> Tensor:
    """Return this worker's part of the mean loss over the ads that have a query in the batch."""
    share = to_device(own_range(len(ads_LD)), ads_LD.device)
    no_places_l1 = torch.full_like(share, -1)[:, None]
    similarity_lB = ads_LD[share] @ queries_BD.T
    if (is_none_bL := encoded.added.get(NO_NEGATIVES)) is not None:
        is_none_lB = gather_own(is_none_bL, len(encoded.batch.queries)).T[share]
        similarity_lB = similarity_lB.masked_fill(is_none_lB, LEFT_OUT)
    losses_l = loss(similarity_lB, no_places_l1, clicked_LB[share])
    return losses_l.sum() / clicked_LB.any(dim=1).sum().clamp(min=1)


def _asking(encoded: EncodedBatch, positions: Tensor) -> Tensor:
    """Return the vectors (n, d) of queries at these positions, to be compared with classifiers."""
    return encoded.added[OF_CLASSIFIERS][encoded.copied(positions)]


def regularizer_term(
    regularizer: Regularizer, weight: float, loss: Loss, every_steps: int = 1
) -> Term:
    """Build the term that ranks a node's own anchors above all others of the batch."""

    def anchors_loss(encoded: EncodedBatch) -> Tensor:
        nodes = encoded.inputs.regularizers[regularizer]
        if not len(nodes.pool.ids):
            return encoded.embeddings_UD.new_zeros(())
        drawn_n1 = encoded.copied(nodes.drawn)
        linked_nL = encoded.is_positive(nodes)
        losses_n = loss(encoded.similarities(nodes), drawn_n1, linked_nL)
        return losses_n.sum() / len(encoded.batch.anchors[regularizer].nodes)

    return Term(regularizer.name, weight, anchors_loss, regularizer, every_steps)


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
    terms = list(task) or [task_term(loss)]
    for regularizer, weight in weighted_regularizers(lambda_x, lambda_z).items():
        terms.append(regularizer_term(regularizer, weight, loss, every_steps))
    return Objective(tuple(terms))


def weighted_regularizers(
    lambda_x: Mapping[str, float], lambda_z: Mapping[str, float]
) -> dict[Regularizer, float]:
    """Return the weights that are not 0 of R_x and R_z, in the order of the objective's terms."""
    weights: dict[Regularizer, float] = {}
    # by set, and R_x before R_z: draws depend on the order
    for name in sorted({*lambda_x, *lambda_z}):
        if weight := lambda_x.get(name):
            weights[Regularizer(name, "query")] = weight
        if weight := lambda_z.get(name):
            weights[Regularizer(name, "ad")] = weight
    return weights
