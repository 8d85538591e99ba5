"""OAK in training: the links of a batch enrich its queries, and move their rows of the bank."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.distributed import gather_rows
from ramen_ray.method.model.augmentation import Augmentation
from ramen_ray.method.objectives.augmentation_terms import ENRICHED
from ramen_ray.method.sampling.batches import Sources
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.parts import Part
from ramen_ray.method.sampling.training_data import QUERIES
from ramen_ray.method.training.classifier_training import ClassifierTraining

MOMENTS_FOLDER = "bank_moments"


class AugmentationTraining(Part):
    """Enriches the queries of batches.

    Attributes:
        augmentation: what enriches; its combiner is trained by the model's optimiser.
        bank: trains the bank; None if it stays as it is.
    """

    name = "attention"

    def __init__(self, augmentation: Augmentation, bank: ClassifierTraining | None) -> None:
        """Train ``augmentation`` in place."""
        self.augmentation = augmentation
        self.bank = bank
        self._drawn: tuple[Tensor, Int64s, Int64s, Tensor] | None = None

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with enriched queries."""
        links = encoded.local.links
        assert links is not None, "the sampler draws no links"
        linked = gather_rows(links, encoded.embeddings_UD.device)
        anchors = np.unique(linked[linked >= 0])  # of all workers, whose gradients are summed
        bank = self.augmentation.bank
        rows = bank.take(anchors) if self.bank is None else self.bank.rows(anchors)
        queries_bD = encoded.vectors(QUERIES, encoded.local.queries)
        self._drawn = queries_bD.detach(), links, anchors, rows
        enriched_bD = self.augmentation(queries_bD, links, anchors, rows)
        return replace(encoded, added={**encoded.added, ENRICHED: enriched_bD})

    def after(self, encoded: EncodedBatch) -> None:
        """Move the rows of the bank that the last batch used, by their gradients."""
        if self.bank is not None and self._drawn is not None:
            _, _, anchors, rows = self._drawn
            self.bank.update(anchors, rows.grad)

    def figures(self) -> dict[str, float]:
        """Return ``evenness`` of the last batch; see :meth:`Augmentation.evenness`."""
        evenness = None if self._drawn is None else self.augmentation.evenness(*self._drawn)
        return {} if evenness is None else {"evenness": evenness}

    def save(self, folder: Path) -> Any:
        """Write the bank's moments, if it is trained; the model has the rest."""
        if self.bank is None:
            return None
        self.bank.save(folder / MOMENTS_FOLDER)
        return self.bank.state_dict()

    def restore(self, folder: Path, content: Any, sources: Sources) -> Sources:
        """Restore the moments."""
        if self.bank is not None:
            self.bank.restore(folder / MOMENTS_FOLDER, content)
        return sources
