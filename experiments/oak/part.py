"""OAK's part of the step: links of a batch enrich its queries, and move their rows of the bank."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from experiments.oak.augmentation import Augmentation
from experiments.oak.terms import ENRICHED
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.hashing import keyed_hash
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.sampling.draws import draw_several
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_part import StepPart
from ramen_ray.method.training.classifier_training import ClassifierTraining

LINK = 8  # keeps the random numbers apart from those of the batches' other draws


class OakPart(StepPart):
    """Enriches the queries of batches, in a run of one process.

    Attributes:
        augmentation: what enriches.
        bank: trains the bank; None if it stays as it is.
    """

    name = "oak"

    def __init__(
        self,
        augmentation: Augmentation,
        bank: ClassifierTraining | None,
        combiner: tuple[torch.optim.Optimizer, LRScheduler],
        links: "Links",
    ) -> None:
        """Train ``augmentation`` in place, its combiner by an optimiser with a schedule."""
        self.augmentation = augmentation
        self.bank = bank
        self._optimizer, self._schedule = combiner
        self._links = links
        self._step = 0
        self._drawn: tuple[Tensor, Int64s, Int64s, Tensor] | None = None

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with enriched queries."""
        links = self._links.draw(self._step, encoded.inputs.local.queries)
        anchors = np.unique(links[links >= 0])
        bank = self.augmentation.bank
        rows = bank.take(anchors) if self.bank is None else self.bank.rows(anchors)
        queries_bD = encoded.queries_bD
        self._drawn = queries_bD.detach(), links, anchors, rows
        enriched_bD = self.augmentation(queries_bD, links, anchors, rows)
        return replace(encoded, added={**encoded.added, ENRICHED: enriched_bD})

    def after(self, encoded: EncodedBatch) -> None:
        """Move the combiner, and the rows of the bank that the batch used."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._schedule.step()
        if self.bank is not None and self._drawn is not None:
            _, _, anchors, rows = self._drawn
            assert rows.grad is not None, "no term is of enriched queries"
            self.bank.update(anchors, rows.grad)
        self._step += 1

    def evenness(self) -> float | None:
        """Return :meth:`Augmentation.evenness` of the last batch."""
        return None if self._drawn is None else self.augmentation.evenness(*self._drawn)


class Links:
    """Draws links of train queries from their edges, anew in each epoch."""

    def __init__(self, edges: Csr, num_links: int, sampler: Sampler) -> None:
        """Draw ``num_links`` of the edges (query rows x anchors of the bank) of each query."""
        self._edges, self._num_links = edges, num_links
        self._ids: NDArray[Any] = sampler.data.query_ids
        self._seed, self._steps_per_epoch = sampler.seed, sampler.steps_per_epoch

    def draw(self, step: int, rows: Int64s) -> Int64s:
        """Return distinct anchors (b, m) of the queries ``rows`` (b,); -1 where there are fewer."""
        key = (self._seed, step // self._steps_per_epoch, LINK)
        own_keys = keyed_hash(key, self._ids[rows])
        return draw_several(self._edges, rows, own_keys, self._num_links, key)
