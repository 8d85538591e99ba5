"""The classifiers' part of the step: the pool's rows before the losses, their update after."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER
from ramen_ray.method.objectives.classifier_terms import CLASSIFIERS, OF_CLASSIFIERS
from ramen_ray.method.sampling.batches import Sources
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.parts import Part
from ramen_ray.method.training.classifier_training import ClassifierTraining

MOMENTS_FOLDER = "classifier_moments"


class ClassifierPart(Part):
    """Gives the losses the classifiers of a pool, and moves these.

    The model's vectors have two parts: a text's embedding, and what classifiers are compared with.
    """

    name = "classifiers"

    def __init__(self, training: ClassifierTraining) -> None:
        """Train the classifiers of ``training``."""
        self.training = training
        self.is_shared = training.classifiers.is_share

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with the classifiers of its pool."""
        classifiers_Ld = self.training.rows(encoded.ad_pool.ids)
        dim = encoded.embeddings_UD.shape[1] - classifiers_Ld.shape[1]
        both = encoded.embeddings_UD
        added = {CLASSIFIERS: classifiers_Ld, OF_CLASSIFIERS: both[:, dim:]}
        return replace(encoded, embeddings_UD=both[:, :dim], added={**encoded.added, **added})

    def after(self, encoded: EncodedBatch) -> None:
        """Move the classifiers of the pool by their gradients."""
        gradient = encoded.added[CLASSIFIERS].grad
        assert gradient is not None, "no term compares classifiers"
        self.training.update(encoded.ad_pool.ids, gradient)

    def save(self, folder: Path) -> Any:
        """Write the classifiers that this worker holds, and their moments."""
        self.training.classifiers.save(folder / CLASSIFIER_FOLDER)
        self.training.save(folder / MOMENTS_FOLDER)
        return self.training.state_dict()

    def restore(self, folder: Path, content: Any, sources: Sources) -> Sources:
        """Restore the moments; the model has the classifiers."""
        self.training.restore(folder / MOMENTS_FOLDER, content)
        return sources
