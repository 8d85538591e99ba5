"""Regulariser weights that are adapted during training, by how well each one serves the task.

RAMEN adjusts its reliance on the graph by "bandits" of learning rate 0.01 (section 1.1, appendix
A); it says no more. Our reading:

- One weight per (side, anchor set): a graph can be right for queries and wrong for ads.
- The task ranks a query's own ad above its rival, the nearest ad of the step without a click from
  the query; seen from the ad, its own query above the nearest query without a click on it. A
  regulariser pulls a row to its anchors. Its *gain* says how much this widens the lead:
  (own - rival) · (anchor - mean anchor of the step), the second factor projected off the row, as
  unit vectors cannot move along themselves. A random graph's anchors are the mean, without gain.
- Only the nearest rival counts: a pull towards the query's own topic helps against most ads, but
  can hurt against the few that outrank the right one.
- A step adds the rate (0.02, as 0.01 is too slow in runs of minutes) times the sum of its rows'
  gains to the logarithm of a weight, so the pace depends on the evidence.
- Reliance is earned: what a weight has earned starts at a hundredth of the highest value, whatever
  λ is, and never falls below, so it can recover; from a tenth on it is the weight, before that 0.
- With a triplet loss it starts at that tenth, and is never 0: its rivals are soon overtaken without
  the graph, whose gains are then too small to earn anything.

Shapes: b rows of this worker and B of the global batch, L candidates, D width of an embedding.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ramen_ray.method.distributed import staged, sum_over_workers
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import Regularizer

LINKED = "linked_anchors"  # what is added to a step's inputs: by regulariser, LinkedAnchors
LEAST_SHARE = 0.01
PULLING_SHARE = 0.1


class AdaptiveWeights(StepPart):
    """The weights of a run's terms: those of regularisers are adapted, the others stay."""

    name = "adaptive"
    moves_weights = True

    def __init__(
        self,
        objective: Objective,
        max_weight: float,
        step_size: float,
        device: torch.device,
        earns_first: bool = True,
    ) -> None:
        """Start all regularisers of the objective alike, whatever weights it gives them.

        No weight exceeds ``max_weight``. With ``earns_first`` it is 0 until it has earned a tenth
        of that. A gain of 1 moves the logarithm of what is earned by ``step_size``.
        """
        self.objective = objective
        self.step_size = step_size
        self._max_weight = max_weight
        is_moved = [term.regularizer is not None for term in objective.terms]
        self._is_moved = torch.tensor(is_moved, device=device)
        self._times = torch.tensor(objective.times, device=device)
        initial = torch.tensor(objective.weights, device=device)
        start = LEAST_SHARE if earns_first else PULLING_SHARE
        self._earned = torch.where(self._is_moved, start * max_weight, initial)
        self._silent_below = PULLING_SHARE * max_weight if earns_first else 0.0

    @property
    def weights(self) -> Tensor:
        """(terms,) float32, in the objective's order; those without a regulariser never move."""
        is_silent = self._is_moved & (self._earned < self._silent_below)
        return self._earned.masked_fill(is_silent, 0.0)

    def prepare(self, inputs: StepInputs) -> StepInputs:
        """Return a step's inputs with the anchors that its queries and ads are linked to."""
        device = self._earned.device
        linked = {
            regularizer: linked_anchors(inputs, regularizer, device)
            for regularizer in inputs.regularizers
        }
        return replace(inputs, added={**inputs.added, LINKED: linked})

    def weigh(self, weights: Tensor, encoded: EncodedBatch) -> Tensor:
        """Move the weights by a step's gains, and return them for the same step."""
        if encoded.batch.anchors:
            gains = regularizer_gains(encoded)
            nothing = self._earned.new_zeros(())
            terms = self.objective.terms
            self.move(torch.stack([gains.get(term.regularizer, nothing) for term in terms]))
        return self.weights

    def move(self, gains: Tensor) -> None:
        """Move what is earned by the gains (terms,) of this worker's rows in a step."""
        # Seen in every N-th step only, they stand for N steps, as the term's loss does.
        factors = torch.exp(self.step_size * sum_over_workers(self._times * gains))
        highest = self._max_weight
        moved = (self._earned * factors).clamp(LEAST_SHARE * highest, highest)
        self._earned = torch.where(self._is_moved, moved, self._earned)

    def save(self, folder: Path) -> dict[str, float]:
        """Return what is earned by the terms' names."""
        return dict(zip(self.objective.names, self._earned.tolist(), strict=True))

    def restore(
        self, folder: Path, content: dict[str, float], sources: SamplingSources
    ) -> SamplingSources:
        """Restore what is earned."""
        earned = [content[name] for name in self.objective.names]
        self._earned = torch.tensor(earned, device=self._earned.device)
        return sources


def rivals(similarity_nL: Tensor, positive_nL: Tensor) -> Tensor:
    """Return each row's nearest candidate (n,) that is no positive (n, L) of it; -1 for none."""
    nearest_n, places_n = similarity_nL.masked_fill(positive_nL, -torch.inf).max(dim=1)
    return torch.where(torch.isfinite(nearest_n), places_n, -1)


def leads(own_bD: Tensor, candidates_LD: Tensor, rivals_b: Tensor) -> Tensor:
    """Return the directions (b, D) that lift rows' own candidates above rivals; 0 for rival -1."""
    return (own_bD - candidates_LD[rivals_b]) * (rivals_b >= 0)[:, None]


def gain(leads_bD: Tensor, rows_bD: Tensor, pulls_bD: Tensor) -> Tensor:
    """Sum the gains of rows (b, D) that are pulled along pulls (b, D); a scalar."""
    along_b1 = (pulls_bD * rows_bD).sum(dim=1, keepdim=True)
    return (leads_bD * (pulls_bD - along_b1 * rows_bD)).sum()


class LinkedAnchors(NamedTuple):
    """The anchors of a regulariser's pool that are linked to the batch's own queries or ads."""

    positions: Tensor  # (links,) int64, of their texts, row by row
    starts: Tensor  # (b,) int64, where each row's begin
    is_linked: Tensor  # (b, 1) bool, which rows have any


def linked_anchors(
    inputs: StepInputs, regularizer: Regularizer, device: torch.device
) -> LinkedAnchors:
    """Find the anchors of this worker's queries, or of the first ad of each, for ``device``."""
    nodes = inputs.regularizers[regularizer]
    drawn = inputs.local.anchors[regularizer].nodes
    rows = inputs.local.queries if regularizer.side == "query" else inputs.local.ads[:, 0]
    links = nodes.positives.numpy()
    if not np.array_equal(rows, drawn):
        links = nodes.pool.links(inputs.data.known_edges[regularizer], rows)
    num_anchors = len(nodes.pool.ids)
    starts = np.searchsorted(links, np.arange(len(rows) + 1) * num_anchors)
    positions = nodes.candidates.numpy()[links % max(num_anchors, 1)]
    arrays = positions, starts[:-1], np.diff(starts)[:, None] > 0
    return LinkedAnchors(*(staged(array, device) for array in arrays))


@torch.no_grad()
def regularizer_gains(encoded: EncodedBatch) -> dict[Regularizer | None, Tensor]:
    """Return each drawn regulariser's gain, a scalar, on this worker's rows."""
    # The batch's queries and ads, and not the nodes that were drawn: only these have a rival. Each
    # is pulled to the mean of those of its anchors that the batch has.
    queries_bD = encoded.queries_bD
    first_ads_b = encoded.own_places[:, 0]
    ads_bD = encoded.vectors(encoded.copied(encoded.inputs.task.candidates)[first_ads_b])
    sides = {regularizer.side for regularizer in encoded.batch.anchors}
    ahead: dict[str, Tensor] = {}
    if "query" in sides:
        rivals_b = rivals(encoded.own_similarity, encoded.own_clicked_in_pool)
        ahead["query"] = leads(ads_bD, encoded.ads_LD, rivals_b)
    if "ad" in sides:
        others_BD = encoded.all_queries_BD
        is_alone = len(queries_bD) == len(others_BD)
        similarity_Bb = encoded.own_similarity[:, first_ads_b] if is_alone else others_BD @ ads_bD.T
        rivals_b = rivals(similarity_Bb.T, encoded.clicked_in_pool[:, first_ads_b].T)
        ahead["ad"] = leads(queries_bD, others_BD, rivals_b)
    rows_of = {"query": queries_bD, "ad": ads_bD}
    gains: dict[Regularizer | None, Tensor] = {}
    for regularizer in encoded.batch.anchors:
        side = regularizer.side
        gains[regularizer] = gain(ahead[side], rows_of[side], _pulls(encoded, regularizer))
    return gains


def _pulls(encoded: EncodedBatch, regularizer: Regularizer) -> Tensor:
    """Return the pulls (b, D) on rows (b,): the mean of a row's anchors minus the mean anchor."""
    if not len(encoded.inputs.regularizers[regularizer].pool.ids):
        return torch.zeros_like(encoded.queries_bD)
    positions, starts, is_linked_b1 = map(encoded.copied, encoded.inputs.added[LINKED][regularizer])
    means_bD = functional.embedding_bag(positions, encoded.embeddings_UD, starts, mode="mean")
    # The mean anchor is that of the global batch; a last column counts the rows that have any.
    total_D1 = sum_over_workers(torch.cat([means_bD, is_linked_b1], dim=1).sum(dim=0))
    return means_bD - is_linked_b1 * (total_D1[:-1] / total_D1[-1].clamp(min=1))
