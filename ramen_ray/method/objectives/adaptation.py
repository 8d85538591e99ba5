"""Regulariser weights that are moved online, by how far each regulariser agrees with the task.

RAMEN says that reliance on the graph is adjusted during training by the confidence in its links
(section 1.1), and gives each "bandit" a learning rate of 0.01 (appendix A); it says no more. Our
reading:

- One weight per (side, anchor set), because a graph can be right for queries and wrong for ads.
- The task ranks a query's own ad above its rival, the nearest ad of the step that the query never
  led to; and, seen from the ad, its own query above the nearest query that never led to it. A
  regulariser draws a query (or ad) to its anchor. Its *gain* on a row is by how much that widens
  the lead: (own - rival) · (anchor - mean anchor of the step), where the second loses what runs
  along the query (or ad), which no update can follow. Shuffled anchors would be the mean anchor on
  average, so that a random graph gains nothing, whatever all texts have in common.
- The nearest rival, and not all that the loss counts, since to be drawn towards the own topic is
  good against most ads and can be bad against those that the ranking is lost to.
- Each row is one pull of its bandits: a step adds 0.01 times the sum of its rows' gains to the
  logarithm of a weight. So the pace is the evidence's, and not the number of steps.
- The weight that a run starts from is also the bound: it is the reliance that was asked for, which
  evidence takes away and gives back. A hundredth of it is always left, so that it can come back.

Shapes: b rows of this worker and B of the global batch, C columns of a draw, L candidates, U
distinct texts, D width, K regularisers.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.sampling.batches import Batches, Pool
from ramen_ray.method.training.devices import to_device
from ramen_ray.method.training.distributed import sum_over_workers

LEAST_SHARE = 0.01


class Adaptation:
    """The weights of a run's loss terms, the same on every worker.

    Attributes:
        weights: (1 + K,) float32: 1 for the task, then the regularisers' in the terms' order.
    """

    def __init__(self, start: list[float], step_size: float, device: torch.device) -> None:
        """Start from the fixed weights of all terms, which are also the upper bounds."""
        self.bounds = torch.tensor(start, device=device)
        self.step_size = step_size
        self.weights = self.bounds

    def observe(self, gains_K: Tensor) -> None:
        """Move the weights by the gains (K,) of this worker's rows in a step."""
        steps = self.step_size * sum_over_workers(gains_K)
        factors = functional.pad(torch.exp(steps), (1, 0), value=1.0)
        moved = torch.maximum(self.weights * factors, LEAST_SHARE * self.bounds)
        self.weights = torch.minimum(moved, self.bounds)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"weights": self.weights}

    def load_state_dict(self, content: dict[str, Tensor]) -> None:
        """Put back what :meth:`state_dict` gave."""
        self.weights = content["weights"].to(self.bounds.device)


def leads(rows_bD: Tensor, own_bD: Tensor, candidates_LD: Tensor, positive_bL: Tensor) -> Tensor:
    """Return the directions in which rows move to put their own candidate before its rival.

    Args:
        rows_bD: (b, D) embeddings of queries, or ads.
        own_bD: (b, D) those of the ads, or queries, that they are paired with.
        candidates_LD: (L, D) those that they are ranked among.
        positive_bL: (b, L) bool, the candidates that are no rivals of a row.

    Returns:
        (b, D) own embedding - that of the nearest rival; zero where a row has no rival.
    """
    scores_bL = (rows_bD @ candidates_LD.T).masked_fill(positive_bL, -torch.inf)
    nearest_b, rivals_b = scores_bL.max(dim=1)
    return (own_bD - candidates_LD[rivals_b]) * torch.isfinite(nearest_b)[:, None]


def gain(leads_bD: Tensor, rows_bD: Tensor, anchors_bD: Tensor, mean_anchor_D: Tensor) -> Tensor:
    """Sum up a regulariser's gains on rows (b, D) that it draws to anchors (b, D); a scalar."""
    pulls_bD = anchors_bD - mean_anchor_D
    along_b1 = (pulls_bD * rows_bD).sum(dim=1, keepdim=True)
    return (leads_bD * (pulls_bD - along_b1 * rows_bD)).sum()


def total_gains(
    embeddings_UD: Tensor, batches: Batches, draws: Int64s, position: Int64s, mine: slice
) -> Tensor:
    """Return the regularisers' gains (K,) on the rows ``mine`` of the global batch's draws."""
    device = embeddings_UD.device
    local, clicks = draws[mine], [batches.clicks]
    columns_CBD = embeddings_UD[to_device(position.T.clip(min=0), device)]
    queries_bD, ads_bD = columns_CBD[:2, mine]
    ads = Pool.of(draws, position, [1, *batches.hard_columns])
    ads_LD = embeddings_UD[to_device(ads.positions, device)]
    clicked_bL = to_device(ads.is_positive(clicks, local[:, 0]), device)
    own_ads = Pool.of(local, position[mine], [1])
    clicked_Bb = own_ads.is_positive(clicks, draws[:, 0])[:, own_ads.find(local[:, 1])]
    ahead_2bD = [
        leads(queries_bD, ads_bD, ads_LD, clicked_bL),
        leads(ads_bD, queries_bD, columns_CBD[0], to_device(clicked_Bb.T, device)),
    ]
    gains = []
    for column, regularizer in enumerate(batches.graphs, start=2):
        node = regularizer.node_column
        drawn, rows = (
            to_device(np.flatnonzero((of[:, [1, column]] >= 0).all(axis=1)), device)
            for of in (draws, local)
        )
        mean_anchor_D = columns_CBD[column, drawn].mean(dim=0)
        nodes_bD, anchors_bD = (columns_CBD[each, mine][rows] for each in (node, column))
        gains.append(gain(ahead_2bD[node][rows], nodes_bD, anchors_bD, mean_anchor_D))
    return torch.stack(gains)
