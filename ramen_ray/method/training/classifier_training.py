"""Training of classifiers: row-wise Adam, which reads and moves only the rows of a step's pool.

The workers' gradients for these rows are summed, and whoever holds a row moves it. Memory is three
times the vectors: themselves and two moments.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.distributed import sum_over_workers, to_device
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER
from ramen_ray.method.model.heads import Classifiers, read_rows, write_rows
from ramen_ray.method.objectives.terms import CLASSIFIERS, OF_CLASSIFIERS
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart

MOMENTS = ("exp_avg", "exp_avg_sq")
MOMENTS_FOLDER = "classifier_moments"


class ClassifierTraining:
    """Classifiers, trained in place, and their optimiser: SparseAdam over the held rows."""

    def __init__(
        self,
        classifiers: Classifiers,
        lr: float,
        build_schedule: Callable[[torch.optim.Optimizer], LRScheduler],
    ) -> None:
        """Train ``classifiers``, on the device where they are, at peak learning rate ``lr``."""
        self.classifiers = classifiers
        self._vectors = nn.Parameter(classifiers.vectors)
        # It counts the steps of all rows together: a row's first one, if late, is up to 3.2 x lr.
        self.optimizer = torch.optim.SparseAdam([self._vectors], lr=lr)
        self.schedule = build_schedule(self.optimizer)

    def rows(self, ads: Int64s) -> Tensor:
        """Return the vectors (n, d) of distinct ads (n,), a leaf, the same on all workers."""
        table = self.classifiers
        if not table.is_share:
            return table.take(ads).detach().requires_grad_()
        rows = table.vectors.new_zeros((len(ads), table.dim))
        held = table.holds(ads)
        rows[to_device(np.flatnonzero(held), rows.device)] = table.take(ads[held]).detach()
        return sum_over_workers(rows).requires_grad_()

    def update(self, ads: Int64s, gradient: Tensor) -> None:
        """Move the held rows among ``ads`` (n,) by the sum of the workers' gradients (n, d)."""
        gradient = sum_over_workers(gradient)
        held = np.flatnonzero(self.classifiers.holds(ads))
        places = to_device(ads[held] - self.classifiers.first, gradient.device)
        self._vectors.grad = torch.sparse_coo_tensor(
            places[None],
            gradient[to_device(held, gradient.device)],
            self._vectors.shape,
            is_coalesced=bool((np.diff(ads) > 0).all()),
            check_invariants=False,
        )
        self.optimizer.step()
        self._vectors.grad = None
        self.schedule.step()

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the moments of the held rows into ``folder``; return what all workers share."""
        for name in MOMENTS:
            write_rows(folder, name, self.classifiers.first, self._state[name])
        return {"step": self._state["step"], "schedule": self.schedule.state_dict()}

    def restore(self, folder: Path, content: dict[str, Any]) -> None:
        """Restore what :meth:`save` kept, whatever the number of workers."""
        state = {name: read_rows(folder, name, self.classifiers.held) for name in MOMENTS}
        device = self._vectors.device
        self.optimizer.state[self._vectors] = {
            "step": content["step"],
            **{name: moment.clone().to(device) for name, moment in state.items()},
        }
        self.schedule.load_state_dict(content["schedule"])
        self.optimizer.param_groups[0]["lr"] = self.schedule.get_last_lr()[0]

    @property
    def _state(self) -> dict[str, Any]:
        state = self.optimizer.state[self._vectors]
        if not state:  # before the first step
            zeros = (torch.zeros_like(self._vectors) for _ in MOMENTS)
            state.update({"step": 0, **dict(zip(MOMENTS, zeros, strict=True))})
        return state


class ClassifierPart(StepPart):
    """Adds a pool's classifiers, and what they are compared with, to a batch, and trains them."""

    name = "classifiers"

    def __init__(self, training: ClassifierTraining) -> None:
        self.training = training
        self.is_shared = training.classifiers.is_share

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with the classifiers of its pool."""
        classifiers_Ld = self.training.rows(encoded.ad_pool.ids)
        vectors = encoded.embeddings_UD
        dim = vectors.shape[1] - classifiers_Ld.shape[1]
        added = {CLASSIFIERS: classifiers_Ld, OF_CLASSIFIERS: vectors[:, dim:]}
        return replace(encoded, embeddings_UD=vectors[:, :dim], added={**encoded.added, **added})

    def after(self, encoded: EncodedBatch) -> None:
        """Move the classifiers of the pool by their gradients."""
        gradient = encoded.added[CLASSIFIERS].grad
        assert gradient is not None, "no term compares classifiers"
        self.training.update(encoded.ad_pool.ids, gradient)

    def save(self, folder: Path) -> Any:
        """Write the classifiers that this worker holds, and their moments."""
        self.training.classifiers.save(folder / CLASSIFIER_FOLDER)
        return self.training.save(folder / MOMENTS_FOLDER)

    def restore(self, folder: Path, content: Any, sources: SamplingSources) -> SamplingSources:
        """Restore the moments; the model has the classifiers."""
        self.training.restore(folder / MOMENTS_FOLDER, content)
        return sources
