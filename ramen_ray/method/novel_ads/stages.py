"""The training of a combiner in two stages: the classifiers of the seen ads, then the combiner.

Both see frozen embeddings only. Steps are numbered through both stages, and a checkpoint can be
written after each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.model.classifiers import Classifiers
from ramen_ray.method.novel_ads.classifiers import (
    HingeSettings,
    initial_classifiers,
    nearest_unclicked,
    train_classifiers,
)
from ramen_ray.method.novel_ads.clicks import SeenClicks, StepSampler
from ramen_ray.method.novel_ads.combiner import Combiner, Kind
from ramen_ray.method.novel_ads.combining import CombinerRates, CombinerTraining
from ramen_ray.method.novel_ads.neighbours import Lookup, SeenAds, clicked_together
from ramen_ray.method.novel_ads.representation import CombinedAds
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.optimization import build_schedule

STATE_FILE, CLASSIFIERS_FOLDER = "stages.pt", "classifiers"
NeighboursBy = Literal["text", "clicks"]


@dataclass(frozen=True)
class StageSettings:
    """Settings of both stages.

    Attributes:
        lookup: how neighbours are found.
        neighbours_by: in training, a seen ad's neighbours are the nearest by text, as a new ad's
            are, or the nearest of those that share a train query with it (``clicks``).
        kind: kind of combiner.
        heads: of its attention.
        rates: of the combiner.
        epochs: of the combiner.
        classifier_lr: peak learning rate of the classifiers.
        classifier_epochs: of the first stage; 0 if only the combiner's loss trains them.
        hinge: other settings of the first stage.
        batch_size: queries of a step of either stage, over all workers.
        seed: seeds everything.
    """

    lookup: Lookup = field(default_factory=Lookup)
    neighbours_by: NeighboursBy = "text"
    kind: Kind = "attention"
    heads: int = 4
    rates: CombinerRates = field(default_factory=CombinerRates)
    epochs: int = 40
    classifier_lr: float = 1e-3
    classifier_epochs: int = 20
    hinge: HingeSettings = field(default_factory=HingeSettings)
    batch_size: int = 256
    seed: int = 0


@dataclass
class Stages:
    """A training in progress.

    Attributes:
        settings: of both stages.
        data: the clicks that are trained on.
        seen: the seen ads; training starts from their classifiers, and replaces them.
        device: where the steps are computed.
        step: number of steps done, in both stages together.
    """

    settings: StageSettings
    data: SeenClicks
    seen: SeenAds
    device: torch.device
    step: int = 0
    _combiner: CombinerTraining | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Start the classifiers where the seen ads have them."""
        settings = self.settings
        self._sampler = StepSampler(self.data, settings.batch_size, settings.seed, self.device)
        table = initial_classifiers(self.seen, self.device)
        all_trained = np.ones(len(table), dtype=bool)
        self._classifiers = ClassifierTraining(
            Classifiers(table, 0, all_trained),
            settings.classifier_lr,
            lambda optimizer: build_schedule(optimizer, 0, max(self._trained_steps, 1)),
        )

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch of either stage."""
        return self._sampler.steps_per_epoch

    @property
    def first_steps(self) -> int:
        """Number of steps of the first stage."""
        return self.settings.classifier_epochs * self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Number of steps of both stages."""
        return self.first_steps + self.settings.epochs * self.steps_per_epoch

    @property
    def _trained_steps(self) -> int:
        """In how many steps the classifiers are trained."""
        return self.total_steps if self.settings.rates.loss == "triplet" else self.first_steps

    def run(self, stop: int) -> Iterator[Tensor]:
        """Train up to step ``stop``; yields each step's loss of this worker, not yet summed."""
        if self.step < min(stop, self.first_steps):
            hinge = self.settings.hinge
            shortlists = nearest_unclicked(self.data, self.seen, hinge.hard_negatives)
            steps = range(self.step, min(stop, self.first_steps))
            for loss in train_classifiers(
                self._classifiers, self._sampler, hinge, shortlists, steps
            ):
                self.step += 1
                yield loss
        if self.step < stop:
            for loss in self._second_stage().run(stop - self.first_steps):
                self.step += 1
                yield loss

    def combined_ads(self) -> CombinedAds:
        """Return the representation of ads at this step, on the CPU."""
        table = self._classifiers.classifiers.vectors.detach().cpu().numpy()
        self.seen.classifiers = table
        combiner = self._second_stage().combiner
        copied = Combiner(combiner.kind, combiner.dim, combiner.heads)
        copied.load_state_dict({k: v.cpu() for k, v in combiner.state_dict().items()})
        return CombinedAds(copied.eval(), self.seen, self.settings.lookup)

    def _second_stage(self) -> CombinerTraining:
        """Return the training of the combiner, begun with the first stage's classifiers."""
        if self._combiner is None:
            settings = self.settings
            table = self._classifiers.classifiers.vectors
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(settings.seed)
                combiner = Combiner(settings.kind, table.shape[1], settings.heads)
            self._combiner = CombinerTraining(
                combiner.to(self.device),
                self._sampler,
                torch.from_numpy(self.seen.embeddings).to(self.device),
                self._neighbours(),
                self._classifiers if settings.rates.loss == "triplet" else table.detach(),
                settings.rates,
                settings.epochs * self.steps_per_epoch,
            )
        return self._combiner

    def _neighbours(self) -> Int64s:
        seen, count = self.seen, self.settings.lookup.neighbours
        if self.settings.neighbours_by == "clicks":
            return clicked_together(self.data.clicks, seen.embeddings, count)
        return seen.nearest(seen.embeddings, count, np.arange(len(seen.ids))).rows

    def save(self, folder: Path) -> None:
        """Write a checkpoint into ``folder``, for :meth:`restore`."""
        self._classifiers.classifiers.save(folder / CLASSIFIERS_FOLDER)
        self._classifiers.save(folder / CLASSIFIERS_FOLDER)
        content = {
            "step": self.step,
            "classifiers": self._classifiers.state_dict(),
            "combiner": self._combiner.state_dict() if self._combiner else None,
        }
        torch.save(content, folder / STATE_FILE)

    def restore(self, folder: Path) -> None:
        """Continue from what :meth:`save` wrote; what follows is the same as without a break."""
        content = torch.load(folder / STATE_FILE, weights_only=True, map_location="cpu")
        self.step = content["step"]
        table = self._classifiers.classifiers.vectors
        saved = Classifiers.open(folder / CLASSIFIERS_FOLDER).vectors
        with torch.no_grad():
            table.copy_(saved)
        self._classifiers.restore(folder / CLASSIFIERS_FOLDER, content["classifiers"])
        if content["combiner"] is not None:
            self._second_stage().load_state_dict(content["combiner"])
