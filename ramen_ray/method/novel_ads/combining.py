"""Training of a combiner on frozen embeddings: its step, in IRENE's two ways.

``bce`` is that of the released code: binary cross-entropy between a query's scores of all ads of
the step and its clicks; the classifiers stay as they are. ``triplet`` is the draft's: a hinge over
the hardest negatives of the step; the classifiers are trained too, by a hinge of their own.

Shapes: b queries of this worker, L ads of a step, K neighbours, D width of a vector, S seen ads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.devices import to_device
from ramen_ray.method.distributed import dealt_rows, gather_dealt, sum_over_workers
from ramen_ray.method.novel_ads.clicks import Step, StepSampler, seeded_dropout
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.objectives.losses import Loss, TripletLoss
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.optimization import build_schedule

LossName = Literal["bce", "triplet"]
NUM_NEGATIVES = 10


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Mean over the pool of the cross-entropy of each ad's score against whether it was clicked.

    It has no bias: the scores of ads that were not clicked must reach about -log L.
    """

    def __call__(
        self, similarity_BL: Tensor, positives_BP: Tensor, is_positive_BL: Tensor
    ) -> Tensor:
        """Return (B,) losses; arguments as for :class:`TripletLoss`."""
        targets_BL = is_positive_BL.to(similarity_BL.dtype)
        return functional.binary_cross_entropy_with_logits(
            similarity_BL, targets_BL, reduction="none"
        ).mean(dim=1)


@dataclass(frozen=True)
class CombinerRates:
    """How a combiner is trained.

    Attributes:
        loss: ``bce`` or ``triplet``.
        lr: peak learning rate, after a linear rise, before a linear fall to zero.
        weight_decay: of the matrices.
        warmup_fraction: share of the steps over which the rate rises.
        margin: γ2, of the combined vectors' hinge (``triplet``).
        classifier_margin: γ1, of the classifiers' hinge (``triplet``).
    """

    loss: LossName = "bce"
    lr: float = 2e-4
    weight_decay: float = 0.01
    warmup_fraction: float = 0.1
    margin: float = 0.3
    classifier_margin: float = 0.1


@dataclass
class CombinerTraining:
    """A combiner in training, and the step that is next.

    Attributes:
        combiner: on the sampler's device.
        sampler: draws the steps.
        embeddings: (S, D) the seen ads' embeddings.
        neighbours: (S, K) rows of seen ads, -1 after the last; never an ad itself.
        classifiers: (S, D) vectors of the seen ads, frozen; or their training, if the combiner's
            loss trains them too.
        rates: how it is trained.
        total_steps: of the whole training.
        step: number of steps done.
    """

    combiner: Combiner
    sampler: StepSampler
    embeddings: Tensor
    neighbours: Int64s
    classifiers: Tensor | ClassifierTraining
    rates: CombinerRates
    total_steps: int
    step: int = 0
    _optimizer: torch.optim.Optimizer = field(init=False)
    _schedule: Any = field(init=False)

    def __post_init__(self) -> None:
        """Build the optimiser: AdamW, which does not decay vectors, and its schedule."""
        parameters = list(self.combiner.parameters())
        groups = [
            {
                "params": [p for p in parameters if p.ndim >= 2],
                "weight_decay": self.rates.weight_decay,
            },
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=self.rates.lr, eps=1e-6
        )
        warmup = round(self.rates.warmup_fraction * self.total_steps)
        self._schedule = build_schedule(self._optimizer, warmup, self.total_steps)

    def run(self, stop: int) -> Iterator[Tensor]:
        """Train up to step ``stop``; yields each step's loss of this worker, not yet summed."""
        self.combiner.train()
        while self.step < stop:
            step = self.sampler.draw(self.step)
            with seeded_dropout(self.sampler.seed, self.step, self.sampler.device):
                value = self._backward(step)
            for parameter in self.combiner.parameters():
                if parameter.grad is not None:
                    parameter.grad = sum_over_workers(parameter.grad)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._schedule.step()
            self.step += 1
            yield value
        self.combiner.eval()

    def _backward(self, step: Step) -> Tensor:
        """Compute the gradients of a step, and update the classifiers if they are trained."""
        neighbours = self.neighbours[step.pool]
        needed = np.unique(np.concatenate([step.pool, neighbours[neighbours >= 0]]))
        trained = self.classifiers if isinstance(self.classifiers, ClassifierTraining) else None
        vectors = self._vectors(needed)
        queries = self.sampler.query_vectors(step)
        combined = self._combined(step.pool, neighbours, needed, vectors)
        losses = self._loss(queries @ combined.T, step.positives, step.is_positive)
        if trained is not None:
            own = vectors[to_device(np.searchsorted(needed, step.pool), vectors.device)]
            hinge = TripletLoss(self.rates.classifier_margin, NUM_NEGATIVES)
            losses = losses + hinge(queries @ own.T, step.positives, step.is_positive)
        value = losses.sum() / self.sampler.batch_size
        value.backward()
        if trained is not None:
            assert vectors.grad is not None
            trained.update(needed, vectors.grad)
        return value.detach()

    def _vectors(self, rows: Int64s) -> Tensor:
        if isinstance(self.classifiers, ClassifierTraining):
            return self.classifiers.rows(rows)
        return self.classifiers[to_device(rows, self.classifiers.device)]

    @property
    def _loss(self) -> Loss:
        if self.rates.loss == "bce":
            return BinaryCrossEntropy()
        return TripletLoss(self.rates.margin, NUM_NEGATIVES)

    def _combined(
        self, pool: Int64s, neighbours: Int64s, needed: Int64s, vectors: Tensor
    ) -> Tensor:
        """Return the combined vectors (L, D) of the pool; each worker computes a share."""
        mine, device = dealt_rows(), self.embeddings.device
        places = np.searchsorted(needed, neighbours[mine].clip(min=needed[0]))
        own = self.combiner(
            self.embeddings[to_device(pool[mine], device)],
            vectors[to_device(places, device)],
            to_device(neighbours[mine] >= 0, device),
        )
        return gather_dealt(own, len(pool))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides the classifiers."""
        return {
            "combiner": self.combiner.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.combiner.load_state_dict(content["combiner"])
        self._optimizer.load_state_dict(content["optimizer"])
        self._schedule.load_state_dict(content["schedule"])
        self.step = content["step"]
