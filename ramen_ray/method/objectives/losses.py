"""The triplet objective and the in-batch pools that it takes its negatives from.

Shapes: B rows (queries or ads), L candidates in the pool (ads or anchors), K hardest negatives.
"""

import torch
from torch import Tensor

SOFTMAX_TEMPERATURE = 0.1


def triplet_loss(
    similarity_BL: Tensor,
    positive_B: Tensor,
    is_positive_BL: Tensor,
    margin: float,
    num_negatives: int,
    softmax_weighting: bool = False,
) -> Tensor:
    """Hinge of each row's positive against its hardest in-batch negatives.

    RAMEN section 3.1: [s(row, negative) - s(row, positive) + margin]_+, over the
    ``num_negatives`` most similar candidates that are no known positive of the row.

    Args:
        similarity_BL: (B, L) float, similarity of every row to every candidate.
        positive_B: (B,) int64, each row's positive among the candidates; -1 gives no term.
        is_positive_BL: (B, L) bool, all known positives, never used as negatives.
        margin: the hinge's margin.
        num_negatives: K; rows with fewer negatives use what there is.
        softmax_weighting: weight a row's violations by softmax(similarity / 0.1), as NGAME does.

    Returns:
        (B,) float, the mean over K of each row's terms; 0 for rows without a positive.
    """
    has_positive_B = positive_B >= 0
    own_B1 = similarity_BL.gather(1, positive_B.clamp(min=0)[:, None])
    negatives_BL = similarity_BL.masked_fill(is_positive_BL, -torch.inf)
    hardest_BK = negatives_BL.topk(min(num_negatives, negatives_BL.shape[1]), dim=1).values
    violation_BK = (hardest_BK - own_B1 + margin).clamp(min=0)
    if softmax_weighting:
        logits_BK = hardest_BK.masked_fill(violation_BK == 0, -torch.inf) / SOFTMAX_TEMPERATURE
        weights_BK = torch.softmax(logits_BK, dim=1).nan_to_num(0.0)
        return (violation_BK * weights_BK).mean(dim=1) * has_positive_B
    return violation_BK.mean(dim=1) * has_positive_B
