"""OAK in training: the links of a batch enrich its queries, and move their rows of the bank."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.distributed import gather_rows
from ramen_ray.method.model.augmentation import Augmentation
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import QUERIES
from ramen_ray.method.training.classifier_training import ClassifierTraining


class AugmentationTraining:
    """Enriches the queries of batches.

    Attributes:
        augmentation: what enriches; its combiner is trained by the model's optimiser.
        bank: trains the bank; None if it stays as it is.
    """

    def __init__(self, augmentation: Augmentation, bank: ClassifierTraining | None) -> None:
        """Train ``augmentation`` in place."""
        self.augmentation = augmentation
        self.bank = bank
        self._drawn: tuple[Tensor, Int64s, Int64s, Tensor] | None = None

    def after(
        self, encode: Callable[[StepInputs], EncodedBatch]
    ) -> Callable[[StepInputs], EncodedBatch]:
        """Return what encodes a batch by ``encode``, and then enriches its queries."""
        return lambda inputs: self._enriched(encode(inputs))

    def _enriched(self, encoded: EncodedBatch) -> EncodedBatch:
        links = encoded.local.links
        assert links is not None, "the sampler draws no links"
        linked = gather_rows(links, encoded.embeddings_UD.device)
        anchors = np.unique(linked[linked >= 0])  # of all workers, whose gradients are summed
        bank = self.augmentation.bank
        rows = bank.take(anchors) if self.bank is None else self.bank.rows(anchors)
        queries_bD = encoded.vectors(QUERIES, encoded.local.queries)
        self._drawn = queries_bD.detach(), links, anchors, rows
        return replace(encoded, enriched_bD=self.augmentation(queries_bD, links, anchors, rows))

    def update(self) -> None:
        """Move the rows of the bank that the last batch used, by their gradients."""
        if self.bank is not None and self._drawn is not None:
            _, _, anchors, rows = self._drawn
            self.bank.update(anchors, rows.grad)

    def figures(self) -> dict[str, float]:
        """Return ``evenness`` of the last batch; see :meth:`Augmentation.evenness`."""
        evenness = None if self._drawn is None else self.augmentation.evenness(*self._drawn)
        return {} if evenness is None else {"evenness": evenness}
