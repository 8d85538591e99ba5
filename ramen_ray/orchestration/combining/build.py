"""Build the parts of a combiner's training from its settings; this module does not need Ray."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.model.classifiers import Classifiers
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.embeddings import TextEmbeddings
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.novel_ads.evaluation import Embedded
from ramen_ray.method.novel_ads.neighbours import Lookup, SeenAds, clicked_together
from ramen_ray.method.novel_ads.representation import CombinedAds
from ramen_ray.method.novel_ads.training import (
    COMBINED,
    CombinerModel,
    CombinerPart,
    bce,
    clicks_on,
    compared_with,
    nearest_unclicked,
    training_data,
)
from ramen_ray.method.objectives.classifier_terms import CLASSIFIERS
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Objective, task_term
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.optimization import build_schedule, head_groups
from ramen_ray.method.training.step import TrainState
from ramen_ray.orchestration.combining.settings import CombineSettings, Variant

NUM_NEGATIVES = 10
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Combining:
    """What a combiner is trained with; it stays the same during training.

    Attributes:
        settings: of the training.
        variant: the one of the settings, with what they set instead.
        queries: embeddings of the train queries.
        ads: embeddings of the seen ads, in rows of the same array.
        seen: the seen ads, with the classifiers that training starts from.
        sampler: draws this worker's share of the batches.
    """

    settings: CombineSettings
    variant: Variant
    queries: TextEmbeddings
    ads: TextEmbeddings
    seen: SeenAds
    sampler: Sampler

    @classmethod
    def of(
        cls, settings: CombineSettings, embedded: Embedded, model: DualEncoder | None = None
    ) -> "Combining":
        """Take the ads of a dataset with enough train clicks as seen.

        Their classifiers are the model's, if it answers by classifiers, or else begin as the texts.
        """
        data, queries = embedded.data, embedded.queries["train"]
        ids = np.flatnonzero(data.train_click_counts >= settings.classifiers.min_clicks)
        ads = replace(embedded.ads, positions=embedded.ads.positions[ids])
        vectors = ads.take(np.arange(len(ids)))
        classifiers = vectors if model is None else model.with_classifiers(vectors, ids)
        seen = SeenAds(ids, vectors, classifiers)
        drawn = training_data(data.query_ids, clicks_on(data, ids), queries, ads)
        size, num_negatives = settings.combiner.batch_size, settings.classifiers.hard_negatives
        sampler = Sampler(drawn, size, settings.seed, num_hard_negatives=num_negatives)
        has_classifiers = model is not None and model.part != "encoder"
        variant = settings.chosen_variant(has_classifiers)
        return cls(settings, variant, queries, ads, seen, sampler)

    @property
    def first_steps(self) -> int:
        """Number of steps that train classifiers only; the combiner's come after."""
        return self.variant.classifier_epochs * self.sampler.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        return self.first_steps + self.settings.combiner.epochs * self.sampler.steps_per_epoch

    def objective(self) -> Objective:
        """Build the terms: that of the first steps, and those of the others."""
        own, first, start = self.settings.combiner, self.settings.classifiers, self.first_steps
        first_steps, others = range(start), range(start, self.total_steps)
        terms = []
        if start:
            similarity = compared_with(CLASSIFIERS, first.dropout)
            hinge = TripletLoss(first.margin, NUM_NEGATIVES)
            terms.append(task_term(hinge, 1.0, "classifiers", similarity, first_steps))
        loss = bce if self.variant.loss == "bce" else TripletLoss(own.margin, NUM_NEGATIVES)
        terms.append(task_term(loss, 1.0, "combiner", compared_with(COMBINED), others))
        if self.variant.loss == "triplet":
            hinge = TripletLoss(own.classifier_margin, NUM_NEGATIVES)
            similarity = compared_with(CLASSIFIERS)
            terms.append(task_term(hinge, 1.0, "combiner_classifiers", similarity, others))
        return Objective(tuple(terms))

    def new_model(self, device: torch.device) -> CombinerModel:
        """Build the model that training starts from."""
        vectors = torch.from_numpy(self.seen.classifiers.copy()).to(device)
        classifiers = Classifiers(vectors, 0, np.ones(len(vectors), dtype=bool))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            kind, heads = self.variant.kind, self.settings.combiner.heads
            combiner = Combiner(kind, vectors.shape[1], heads).to(device)
        return CombinerModel(combiner, classifiers, self.ads)

    def new_state(self, model: CombinerModel) -> TrainState:
        """Build what changes besides the model, as it is before the first step."""
        own, first, start = self.settings.combiner, self.settings.classifiers, self.first_steps
        is_frozen = self.variant.loss == "bce"
        num_moved = start if is_frozen else self.total_steps
        training = ClassifierTraining(
            model.classifiers,
            first.lr,
            partial(build_schedule, warmup_steps=0, total_steps=num_moved),
        )
        clicks, count = self.sampler.data.clicks, first.hard_negatives
        part = CombinerPart(
            model,
            training,
            self._neighbours(),
            start,
            lambda: nearest_unclicked(self.queries, clicks, self.seen, count),
            is_frozen,
        )
        groups, num_steps = head_groups([model], own.lr, WEIGHT_DECAY), self.total_steps - start
        optimizer = torch.optim.AdamW(groups, lr=own.lr, eps=1e-6)
        warmup = round(own.warmup_fraction * num_steps)
        schedule = build_schedule(optimizer, warmup, num_steps, first_step=start)
        return TrainState(model, optimizer, schedule, DrawState({}), parts=[part])

    def _neighbours(self) -> Int64s:
        """Return the neighbours (S, K) of the seen ads in training."""
        seen, own = self.seen, self.settings.combiner
        if self.variant.neighbours_by == "clicks":
            clicks = self.sampler.data.clicks
            return clicked_together(clicks, seen.embeddings, own.neighbours)
        return seen.nearest(seen.embeddings, own.neighbours, np.arange(len(seen.ids))).rows

    def combined_ads(self, model: CombinerModel) -> CombinedAds:
        """Return the representation of ads by what has been trained."""
        own = self.settings.combiner
        return model.combined_ads(
            self.seen, Lookup(own.neighbours, own.shortlist, self.variant.threshold)
        )
