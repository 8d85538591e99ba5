"""Regulariser weights that are adapted during training, by how well each one serves the task.

RAMEN adjusts its reliance on the graph by "bandits" of learning rate 0.01 (section 1.1, appendix
A); it says no more. Our reading:

- One weight per (side, anchor set): a graph can be right for queries and wrong for ads.
- The task ranks a query's own ad above its rival, the nearest ad of the step without a click from
  the query, or a high grade; seen from the ad, its own query above the nearest query without one.
  A regulariser pulls a row to its anchors. Its *gain* says how much this widens the lead:
  (own - rival) · (anchor - mean anchor of the step), the second factor projected off the row, as
  unit vectors cannot move along themselves.
- Only the nearest rival counts: a pull towards the query's own topic helps against most ads, but
  can hurt against the few that outrank the right one.
- Reliance is earned by a test. If a graph is independent of the clicks, its anchors could be dealt
  out anew: a node's gain is as often positive as negative. So the sum of an epoch's gains, over the
  root of the sum of their squares, exceeds z with a probability of at most exp(-z²/2), whatever the
  degrees, the batch and the number of nodes. A node counts once in an epoch.
- The k-th look may err with the probability ERROR · 6 / (π k)², shared by the run's graphs, so that
  all looks together err with ERROR: after 1, 2, 4, ... steps of the first epoch, then after each.
- Until then the weight is 0. Then it starts at a tenth of λ, which is its highest value. A step
  adds the rate (0.02, as 0.01 is too slow in runs of minutes) times the sum of its rows' gains to
  the logarithm of the weight, which stays within a hundredth of λ and λ.
- What cannot be tested starts at that tenth. With a triplet loss, rivals are soon overtaken without
  the graph, whose gains are then too small to show anything. And the gains of n nodes sum to √n
  times the root of the sum of their squares at most, so that a graph of ads without clicks, which
  have no gains, could never pass.

Shapes: b rows of this worker and B of the global batch, L candidates, D width of an embedding.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ramen_ray.method.distributed import own_range, staged, sum_over_workers
from ramen_ray.method.objectives.terms import Objective, not_rivals, own_not_rivals
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import ADS, Regularizer, TrainingData

LINKED = "linked_anchors"
IS_NEW = "is_new_ad"
"""What is added to a step's inputs: LinkedAnchors by regulariser; (b,) bool, whether a row's first
ad is in the epoch for the first time."""
ERROR = 0.02  # probability that any useless graph of a run ever pulls
LEAST_SHARE = 0.01
FIRST_SHARE = 0.1


class AdaptiveWeights(StepPart):
    """The weights of a run's terms: those of regularisers are adapted, the others stay."""

    name = "adaptive"
    moves_weights = True

    def __init__(
        self,
        objective: Objective,
        step_size: float,
        steps_per_epoch: int,
        device: torch.device,
        untested: Collection[Regularizer] = (),
    ) -> None:
        """Start all regularisers at a tenth of the objective's weights, which none exceeds.

        Unless it is ``untested``, a weight is 0 until its graph has passed the test. A gain of 1
        moves the logarithm of a weight by ``step_size``.
        """
        self.objective = objective
        self.step_size = step_size
        self.steps_per_epoch = steps_per_epoch
        self._step = 0
        self._num_looks = 0
        self.num_tests = len(objective.regularizers)  # that share the error
        is_moved = [term.regularizer is not None for term in objective.terms]
        self._is_moved = torch.tensor(is_moved, device=device)
        self._times = torch.tensor(objective.times, device=device)
        self._highest = torch.tensor(objective.weights, device=device)
        self._levels = torch.where(self._is_moved, FIRST_SHARE, 1.0) * self._highest
        is_untested = [term.regularizer in untested for term in objective.terms]
        self._pulls = ~self._is_moved | torch.tensor(is_untested, device=device)
        # (2, terms) float64: the sum of this epoch's gains of nodes, and of their squares
        self._evidence = torch.zeros(2, len(is_moved), dtype=torch.float64, device=device)
        self._seen: NDArray[np.bool_] | None = None  # (ads,) whether this epoch has measured an ad

    @property
    def weights(self) -> Tensor:
        """(terms,) float32, in the objective's order; those without a regulariser never move."""
        return torch.where(self._pulls, self._levels, 0.0)

    def prepare(self, inputs: StepInputs) -> StepInputs:
        """Return a step's inputs with the anchors that its queries and ads are linked to."""
        if not inputs.regularizers:
            return inputs
        device = self._levels.device
        is_new_b = staged(self._new_ads(inputs), device)
        linked = {
            regularizer: linked_anchors(inputs, regularizer, device)
            for regularizer in inputs.regularizers
        }
        return replace(inputs, added={**inputs.added, LINKED: linked, IS_NEW: is_new_b})

    def _new_ads(self, inputs: StepInputs) -> NDArray[np.bool_]:
        """Say which of this worker's first ads (b,) the epoch measures for the first time."""
        if self._seen is None:
            self._seen = np.zeros(len(inputs.data.tables[ADS]), dtype=bool)
        ads_B = inputs.batch.ads[:, 0]
        is_new_B = np.zeros(len(ads_B), dtype=bool)
        is_new_B[np.unique(ads_B, return_index=True)[1]] = True
        is_new_B &= ~self._seen[ads_B]
        self._seen[ads_B] = True
        return is_new_B[own_range(len(ads_B))]

    def weigh(self, weights: Tensor, encoded: EncodedBatch) -> Tensor:
        """Move the weights by a step's gains, and return them for the same step."""
        if encoded.batch.anchors:
            gains = regularizer_gains(encoded)
            nothing_3 = self._evidence.new_zeros(3)
            terms = self.objective.terms
            self.move(
                torch.stack([gains.get(term.regularizer, nothing_3) for term in terms], dim=1)
            )
        self.end_step()
        return self.weights

    def move(self, gains: Tensor) -> None:
        """Take this worker's gains of a step (3, terms): all rows', new nodes', and the squares."""
        sum_over_workers(gains)
        # Seen in every N-th step only, they stand for N steps, as the term's loss does.
        factors = torch.exp(self.step_size * self._times * gains[0])
        moved = (self._levels * factors.float()).clamp(LEAST_SHARE * self._highest, self._highest)
        self._levels = torch.where(self._is_moved & self._pulls, moved, self._levels)
        self._evidence += gains[1:]

    def end_step(self) -> None:
        """Count a step; look at the evidence if that is due."""
        self._step += 1
        epoch, position = divmod(self._step, self.steps_per_epoch)
        if position == 0 or (epoch == 0 and position.bit_count() == 1):
            self.look()
        if position == 0:
            self._evidence.zero_()
            self._seen = None

    @property
    def needed_z(self) -> float:
        """What the latest look asks of each graph."""
        return needed_z(self._num_looks, self.num_tests)

    def look(self) -> None:
        """Let those graphs pull whose evidence of this epoch passes the test."""
        self._num_looks += 1
        total, squares = self._evidence
        self._pulls |= total > self.needed_z * squares.sqrt()

    def save(self, folder: Path) -> dict[str, Any]:
        """Return the levels, what pulls, and the evidence of the epoch."""
        return {
            "levels": self._levels,
            "pulls": self._pulls,
            "evidence": self._evidence,
            "seen": None if self._seen is None else torch.from_numpy(self._seen),
            "step": self._step,
            "num_looks": self._num_looks,
        }

    def restore(
        self, folder: Path, content: dict[str, Any], sources: SamplingSources
    ) -> SamplingSources:
        """Restore what :meth:`save` returned."""
        device = self._levels.device
        self._levels = torch.as_tensor(content["levels"], device=device)
        self._pulls = torch.as_tensor(content["pulls"], device=device)
        self._evidence = content["evidence"].to(device)
        self._seen = None if content["seen"] is None else content["seen"].numpy().copy()
        self._step = content["step"]
        self._num_looks = content["num_looks"]
        return sources


def needed_z(num_looks: int, num_tests: int) -> float:
    """Return what the latest of some looks asks of each of the graphs that are tested."""
    return math.sqrt(2 * math.log(num_tests * (math.pi * num_looks) ** 2 / 6 / ERROR))


def untestable(data: TrainingData) -> list[Regularizer]:
    """Return the regularisers of too few clicked nodes to pass even the first look."""
    is_clicked = {
        "query": np.diff(data.clicks.indptr) > 0,
        "ad": np.zeros(len(data.tables[ADS]), dtype=bool),
    }
    is_clicked["ad"][data.clicks.indices] = True
    return [
        regularizer
        for regularizer, edges in data.graphs.items()
        if np.count_nonzero(is_clicked[regularizer.side][edges.filled_rows])
        <= needed_z(1, len(data.graphs)) ** 2
    ]


def rivals(similarity_nL: Tensor, positive_nL: Tensor) -> Tensor:
    """Return each row's nearest candidate (n,) that is no positive (n, L) of it; -1 for none."""
    nearest_n, places_n = similarity_nL.masked_fill(positive_nL, -torch.inf).max(dim=1)
    return torch.where(torch.isfinite(nearest_n), places_n, -1)


def leads(own_bD: Tensor, candidates_LD: Tensor, rivals_b: Tensor) -> Tensor:
    """Return the directions (b, D) that lift rows' own candidates above rivals; 0 for rival -1."""
    return (own_bD - candidates_LD[rivals_b]) * (rivals_b >= 0)[:, None]


def gains_of_rows(leads_bD: Tensor, rows_bD: Tensor, pulls_bD: Tensor) -> Tensor:
    """Return the gains (b,) of rows (b, D) that are pulled along pulls (b, D)."""
    along_b1 = (pulls_bD * rows_bD).sum(dim=1, keepdim=True)
    return (leads_bD * (pulls_bD - along_b1 * rows_bD)).sum(dim=1)


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
    """Return each drawn regulariser's gains (3,) float64 on this worker's rows.

    These are the sum over the rows, that over nodes that are new in the epoch, and its squares'.
    """
    # The batch's queries and ads, and not the nodes that were drawn: only these have a rival. Each
    # is pulled to the mean of those of its anchors that the batch has.
    queries_bD = encoded.queries_bD
    first_ads_b = encoded.own_places[:, 0]
    ads_bD = encoded.vectors(encoded.copied(encoded.inputs.task.candidates)[first_ads_b])
    sides = {regularizer.side for regularizer in encoded.batch.anchors}
    ahead: dict[str, Tensor] = {}
    if "query" in sides:
        rivals_b = rivals(encoded.own_similarity, own_not_rivals(encoded))
        ahead["query"] = leads(ads_bD, encoded.ads_LD, rivals_b)
    if "ad" in sides:
        others_BD = encoded.all_queries_BD
        is_alone = len(queries_bD) == len(others_BD)
        similarity_Bb = encoded.own_similarity[:, first_ads_b] if is_alone else others_BD @ ads_bD.T
        rivals_b = rivals(similarity_Bb.T, not_rivals(encoded)[:, first_ads_b].T)
        ahead["ad"] = leads(queries_bD, others_BD, rivals_b)
    rows_of = {"query": queries_bD, "ad": ads_bD}
    gains: dict[Regularizer | None, Tensor] = {}
    for regularizer in encoded.batch.anchors:
        side = regularizer.side
        pulls_bD = _pulls(encoded, regularizer)
        gains_b = gains_of_rows(ahead[side], rows_of[side], pulls_bD).double()
        # an epoch has each query once
        new_b = (
            gains_b if side == "query" else gains_b * encoded.copied(encoded.inputs.added[IS_NEW])
        )
        gains[regularizer] = torch.stack([gains_b.sum(), new_b.sum(), new_b.square().sum()])
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
