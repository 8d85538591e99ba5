"""Losses: how far rows are from ranking their positives above everything else in a pool.

All have one signature, and return (B,) floats, 0 for a row without a positive or a negative:

- similarity_BL: (B, L) float, of every row to every candidate; LEFT_OUT of one that is no negative;
- positives_BP: (B, P) int64, the places of the positives that a row drew; -1 for none;
- is_positive_BL: (B, L) bool, all known positives, which are never negatives.

Shapes: B rows (queries or nodes), L candidates in the pool (ads or anchors), K hardest negatives.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ramen_ray.method.sampling.encoded import LEFT_OUT

SOFTMAX_TEMPERATURE = 0.1

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TripletLoss:
    """Hinge of each row's positives against its K hardest in-batch negatives.

    RAMEN section 3.1: the mean of [s(row, negative) - s(row, positive) + γ]_+.
    """

    margin: float  # γ
    num_negatives: int  # K; rows with fewer negatives use all they have
    # weight a row's violations by softmax(similarity / 0.1), as NGAME does
    softmax_weighting: bool = False

    def __call__(
        self, similarity_BL: Tensor, positives_BP: Tensor, is_positive_BL: Tensor
    ) -> Tensor:
        """Return each row's loss (B,)."""
        has_positive_BP = positives_BP >= 0
        negatives_BL = similarity_BL.detach().masked_fill(is_positive_BL, -torch.inf)
        num_negatives = min(self.num_negatives, negatives_BL.shape[1])
        nearest_BK, places_BK = negatives_BL.topk(num_negatives, dim=1)
        is_negative_BK = nearest_BK > LEFT_OUT
        # One look-up of all that counts, so that one array of the pool's size has the gradients.
        chosen = similarity_BL.gather(1, torch.cat([positives_BP.clamp(min=0), places_BK], dim=1))
        positive_BP, hardest_BK = chosen.split([positives_BP.shape[1], num_negatives], dim=1)
        positive_BP1 = positive_BP[:, :, None]
        hardest_B1K = hardest_BK.masked_fill(~is_negative_BK, -torch.inf)[:, None]
        num_hardest_B1 = is_negative_BK.sum(dim=1, keepdim=True).clamp(min=1)
        violations_BPK = (hardest_B1K - positive_BP1 + self.margin).clamp(min=0)
        if self.softmax_weighting:
            logits_BPK = hardest_B1K.masked_fill(violations_BPK == 0, -torch.inf)
            weights_BPK = torch.softmax(logits_BPK / SOFTMAX_TEMPERATURE, dim=2).nan_to_num(0.0)
            violations_BPK = violations_BPK * weights_BPK
        losses_BP = violations_BPK.sum(dim=2) / num_hardest_B1 * has_positive_BP
        return losses_BP.sum(dim=1) / has_positive_BP.sum(dim=1).clamp(min=1)


@dataclass(frozen=True)
class SoftmaxLoss:
    """Softmax over the pool, averaged over all known positives of a row, drawn by it or not.

    UniDEC's multi-class loss with several positives (PSL, section 3): log Σ exp(s) - s_positive,
    with s the similarity over the temperature. Decoupled, the sum leaves the other positives of the
    row out, so that they do not compete (DEXML); otherwise it has all of the pool (SupCon).
    """

    temperature: float
    is_decoupled: bool = True

    def __call__(
        self, similarity_BL: Tensor, positives_BP: Tensor, is_positive_BL: Tensor
    ) -> Tensor:
        """Return each row's loss (B,)."""
        logits_BL = similarity_BL / self.temperature
        if self.is_decoupled:
            others_B = logits_BL.masked_fill(is_positive_BL, LEFT_OUT).logsumexp(dim=1)
            losses_BL = functional.softplus(others_B[:, None] - logits_BL)
        else:
            losses_BL = logits_BL.logsumexp(dim=1)[:, None] - logits_BL
        num_positives_B = is_positive_BL.sum(dim=1).clamp(min=1)
        return losses_BL.masked_fill(~is_positive_BL, 0).sum(dim=1) / num_positives_B
