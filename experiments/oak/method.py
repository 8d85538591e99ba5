"""OAK on a base: its bank and combiner, their training, and the terms of its objective."""

from functools import partial

import numpy as np
import torch

from experiments.oak.augmentation import Augmentation, Combiner
from experiments.oak.links import bank_texts, train_links
from experiments.oak.part import Links, OakPart
from experiments.oak.settings import OakSettings
from experiments.oak.terms import oak_terms
from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.classifiers import Classifiers
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Objective, ramen_objective
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.optimization import build_schedule, head_groups


def oak_objective(config: RunConfig, oak: OakSettings) -> Objective:
    """Build OAK's terms, with the run's triplet loss."""
    constants = config.loss
    loss = TripletLoss(constants.margin, constants.num_negatives, constants.softmax_weighting)
    weights = oak.encoder_weight, oak.calibration_weight, oak.calibration_margin
    return ramen_objective(loss, {}, {}, 1, oak_terms(loss, *weights))


def oak_part(
    config: RunConfig, oak: OakSettings, data: Prepared, model: DualEncoder, sampler: Sampler
) -> OakPart:
    """Build what OAK starts from, a combiner that adds and a bank of the anchors' texts."""
    augmentation = _augmentation(oak, data, model)
    num_steps = sampler.steps_per_epoch * config.training.epochs
    rates = config.optimizer
    groups = head_groups([augmentation.combiner], rates.head_lr or rates.lr, rates.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=rates.lr, eps=1e-6, fused=True)
    warmup_steps = round(rates.warmup_fraction * num_steps)
    schedule = build_schedule(optimizer, warmup_steps, num_steps, rates.decay)
    falling = partial(build_schedule, warmup_steps=0, total_steps=num_steps, decay="cosine")
    bank = ClassifierTraining(augmentation.bank, oak.bank_lr, falling) if oak.bank_lr else None
    links = Links(train_links(data, oak.anchor_sets), oak.max_links, sampler)
    return OakPart(augmentation, bank, (optimizer, schedule), links)


def _augmentation(oak: OakSettings, data: Prepared, model: DualEncoder) -> Augmentation:
    texts = bank_texts(data, oak.anchor_sets)
    vectors = model.unscaled(texts, np.arange(len(texts)))
    is_linked = np.zeros(len(texts), dtype=bool)
    is_linked[train_links(data, oak.anchor_sets).indices] = True
    combiner = Combiner(model.encoder.dim, oak.pooling, oak.attention_dropout)
    bank = Classifiers(torch.from_numpy(vectors), 0, is_linked)
    return Augmentation(combiner, bank).to(model.device)
