"""Terms that UniDEC adds (section 3): from ads to queries, and by classifiers.

Shapes: b rows of this worker and B of the global batch, L candidates of a pool, l this worker's
share of them, D width of an embedding, d of a classifier.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ramen_ray.method.distributed import own_range, to_device
from ramen_ray.method.model.heads import unit
from ramen_ray.method.objectives.losses import Loss
from ramen_ray.method.objectives.terms import Term, task_term
from ramen_ray.method.sampling.encoded import EncodedBatch

REVERSE, CLASSIFIER, CLASSIFIER_REVERSE = "task_reverse", "classifier", "classifier_reverse"
BCE = "classifier_bce"
CLASSIFIERS, OF_CLASSIFIERS = "classifiers_Ld", "classifier_queries_Ud"
"""What is added to a batch: (L, d) float32, the classifiers of the pool; (U, d) float32, the
vectors of its texts, not normalised, that are compared with them."""


def reverse_term(loss: Loss, weight: float) -> Term:
    """Build the term that ranks the queries with a click on an ad above all others of the batch."""

    def share(encoded: EncodedBatch) -> Tensor:
        return _reverse_share(loss, encoded, encoded.all_queries_BD, encoded.ads_LD)

    return Term(REVERSE, weight, share)


def classifier_term(loss: Loss, weight: float, by_cosine: bool = False) -> Term:
    """Build the term that ranks the classifiers of a query's ads above all others of the pool.

    ``by_cosine`` compares by cosines instead of inner products, for losses with a margin.
    """

    def similarity(encoded: EncodedBatch) -> Tensor:
        queries_bd, classifiers_Ld = _own_queries(encoded), encoded.added[CLASSIFIERS]
        if by_cosine:
            queries_bd, classifiers_Ld = unit(queries_bd), unit(classifiers_Ld)
        return queries_bd @ classifiers_Ld.T

    return task_term(loss, weight, CLASSIFIER, similarity)


def classifier_reverse_term(loss: Loss, weight: float) -> Term:
    """Build :func:`reverse_term` for classifiers: queries are ranked for each of them."""

    def share(encoded: EncodedBatch) -> Tensor:
        queries_Bd = _queries(encoded, encoded.inputs.queries)
        return _reverse_share(loss, encoded, queries_Bd, encoded.added[CLASSIFIERS])

    return Term(CLASSIFIER_REVERSE, weight, share)


def bce_term(temperature: float, weight: float) -> Term:
    """Build the binary cross-entropy of whether each ad of the pool was clicked for a query."""

    def share(encoded: EncodedBatch) -> Tensor:
        logits_bL = _own_queries(encoded) @ encoded.added[CLASSIFIERS].T / temperature
        clicked_bL = encoded.own_clicked_in_pool.to(logits_bL.dtype)
        total = functional.binary_cross_entropy_with_logits(logits_bL, clicked_bL, reduction="sum")
        return total / (len(encoded.batch.queries) * len(encoded.ad_pool.ids))

    return Term(BCE, weight, share)


def _reverse_share(loss: Loss, encoded: EncodedBatch, queries_BD: Tensor, ads_LD: Tensor) -> Tensor:
    """Return this worker's part of the mean loss over the ads that have a query in the batch."""
    clicked_LB = encoded.clicked_in_pool.T
    own = to_device(own_range(len(ads_LD)), ads_LD.device)
    no_places_l1 = torch.full_like(own, -1)[:, None]
    losses_l = loss(ads_LD[own] @ queries_BD.T, no_places_l1, clicked_LB[own])
    return losses_l.sum() / clicked_LB.any(dim=1).sum().clamp(min=1)


def _own_queries(encoded: EncodedBatch) -> Tensor:
    return _queries(encoded, encoded.inputs.task.rows)


def _queries(encoded: EncodedBatch, positions: Tensor) -> Tensor:
    return encoded.added[OF_CLASSIFIERS][encoded.copied(positions)]
