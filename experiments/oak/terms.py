"""OAK's terms: the task with enriched queries, the same without, and calibration between both.

Shapes: b rows of this worker, L ads of the pool, K entries of a row that count.
"""

import torch
from torch import Tensor

from ramen_ray.method.objectives.losses import Loss
from ramen_ray.method.objectives.terms import TASK, Term, task_term
from ramen_ray.method.sampling.encoded import EncodedBatch, similarities

ENCODER, CALIBRATION = "encoder", "calibration"
ENRICHED = "enriched_bD"
"""What is added to a batch: (b, D) float32, this worker's queries with their anchors."""
NUM_CALIBRATED = 10


def oak_terms(
    loss: Loss, encoder_weight: float, calibration_weight: float, calibration_margin: float
) -> list[Term]:
    """Build OAK's terms; those of weight 0 are left out.

    Args:
        loss: of the task, with enriched queries and without.
        encoder_weight: weight of the task without.
        calibration_weight: weight of the calibration.
        calibration_margin: see :func:`calibration_losses`.
    """
    others = [
        task_term(loss, encoder_weight, ENCODER),
        _calibration_term(calibration_weight, calibration_margin),
    ]
    return [
        task_term(loss, 1.0, TASK, _enriched_similarity),
        *(term for term in others if term.weight),
    ]


def calibration_losses(
    plain_bL: Tensor, enriched_bL: Tensor, is_clicked_bL: Tensor, margin: float
) -> Tensor:
    """Return how far each row's enriched scores are from beating the plain ones where they should.

    They should be higher by ``margin`` for ads that a query led to, and lower for all others.

    Args:
        plain_bL: (b, L) scores of queries' own embeddings.
        enriched_bL: (b, L) scores of their enriched embeddings.
        is_clicked_bL: (b, L) bool.
        margin: γ of the hinge.

    Returns:
        (b,) the mean hinge over the 10 entries that are furthest off, or all if there are fewer.
    """
    ahead_bL = torch.where(is_clicked_bL, enriched_bL - plain_bL, plain_bL - enriched_bL)
    hinges_bL = (margin - ahead_bL).clamp(min=0)
    return hinges_bL.topk(min(NUM_CALIBRATED, hinges_bL.shape[1]), dim=1).values.mean(dim=1)


def _calibration_term(weight: float, margin: float) -> Term:
    def share(encoded: EncodedBatch) -> Tensor:
        plain_bL, enriched_bL = encoded.own_similarity, _enriched_similarity(encoded)
        losses_b = calibration_losses(plain_bL, enriched_bL, encoded.own_clicked_in_pool, margin)
        return losses_b.sum() / len(encoded.batch.queries)

    return Term(CALIBRATION, weight, share)


def _enriched_similarity(encoded: EncodedBatch) -> Tensor:
    return similarities(encoded.added[ENRICHED], encoded.ads_LD)
