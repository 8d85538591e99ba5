"""What judgements add to a step: ads that are no negatives, and a term that learns grades.

Shapes: b rows of this worker, L ads of the pool.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ramen_ray.data.store.judgements import LOW
from ramen_ray.method.distributed import staged
from ramen_ray.method.objectives.terms import NO_NEGATIVES, Term
from ramen_ray.method.sampling.encoded import LEFT_OUT, EncodedBatch, StepPart
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import JudgedAds

GRADED = "graded"
LINKS = "judged_links"
GRADES = "judged_grades"
"""What is added to inputs, and to a batch: row * L + place in the pool (links,) of what is judged;
the grades, (links,) in inputs and (b, L) in a batch, with NaN for what is not judged."""


class JudgedPart(StepPart):
    """Tells the losses which ads of the pool are judged, and how."""

    name = "judged"

    def __init__(self, judged: JudgedAds, device: torch.device) -> None:
        """Look the batches' ads up in ``judged``."""
        self.judged = judged
        self.device = device

    def prepare(self, inputs: StepInputs) -> StepInputs:
        """Return a step's inputs with the grades of this worker's queries."""
        links, grades = self.judged.links(inputs.task.pool.ids, inputs.local.queries)
        added = {LINKS: staged(links, self.device), GRADES: staged(grades, self.device)}
        return replace(inputs, added={**inputs.added, **added})

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with its grades, and with those ads that are no negatives."""
        clicked_bL = encoded.own_clicked_in_pool
        links, grades = (encoded.copied(encoded.inputs.added[name]) for name in (LINKS, GRADES))
        grades_bL = torch.full(clicked_bL.shape, torch.nan, device=grades.device)
        grades_bL.view(-1)[links] = grades
        no_negatives_bL = (grades_bL >= LOW) & ~clicked_bL
        added = {GRADES: grades_bL, NO_NEGATIVES: no_negatives_bL}
        return replace(encoded, added={**encoded.added, **added})


def graded_term(weight: float, temperature: float | None = None) -> Term:
    """Build the term that brings cosines to the judged ads of the pool in line with their grades.

    Without a ``temperature`` it is MarginMSE, the mean over a query's pairs of judged ads of
    (difference of cosines - difference of grades)²; else the KL divergence of the softmax of
    cosines over the temperature from that of grades. Queries with fewer than two judged ads count
    as 0.
    """

    def loss(encoded: EncodedBatch) -> Tensor:
        grades_bL = encoded.added[GRADES]
        similarity_bL = encoded.own_similarity
        is_judged_bL = ~grades_bL.isnan() & (similarity_bL > LEFT_OUT)
        if temperature is None:
            losses_b = _margin_errors(similarity_bL, grades_bL, is_judged_bL)
        else:
            log_shares = [
                torch.where(is_judged_bL, values_bL / temperature, LEFT_OUT).log_softmax(dim=1)
                for values_bL in (similarity_bL, grades_bL)
            ]
            losses_b = functional.kl_div(*log_shares, reduction="none", log_target=True).sum(dim=1)
        return losses_b.sum() / len(encoded.batch.queries)

    return Term(GRADED, weight, loss)


def _margin_errors(similarity_bL: Tensor, grades_bL: Tensor, is_judged_bL: Tensor) -> Tensor:
    """Return the mean (b,) over pairs of judged ads of their squared errors of difference."""
    # over all pairs, the mean of (x_i - x_j)² is twice the sample variance of x
    errors_bL = torch.where(is_judged_bL, similarity_bL - grades_bL, 0.0)
    num_judged_b = is_judged_bL.sum(dim=1)
    means_b1 = errors_bL.sum(dim=1, keepdim=True) / num_judged_b.clamp(min=1)[:, None]
    squares_b = ((errors_bL - means_b1) * is_judged_bL).square().sum(dim=1)
    return 2 * squares_b / (num_judged_b - 1).clamp(min=1)
