"""Classifiers of the seen ads: free vectors, trained on frozen embeddings (NGAME's last stage)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ramen_ray.method.novel_ads.clicks import SeenClicks, StepSampler, seeded_dropout
from ramen_ray.method.novel_ads.neighbours import SeenAds
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.training.classifier_training import ClassifierTraining

QUERIES_PER_BLOCK = 4096


@dataclass(frozen=True)
class HingeSettings:
    """Settings of the classifiers' training.

    Attributes:
        margin: of the hinge.
        num_negatives: how many of a query's hardest negatives of the pool count.
        hard_negatives: of each query's nearest ads, how many join the pool.
        dropout: share of a query's dimensions that are dropped in training.
    """

    margin: float = 0.2
    num_negatives: int = 10
    hard_negatives: int = 4
    dropout: float = 0.5


def nearest_unclicked(data: SeenClicks, seen: SeenAds, count: int) -> NDArray[np.int32]:
    """Find, for every train query, the nearest seen ads by text that were not clicked for it.

    Returns:
        (train queries, count) int32 rows of seen ads; -1 where there are fewer.
    """
    num_queries = data.clicks.num_rows
    shortlists = np.full((num_queries, count), -1, dtype=np.int32)
    most = int(data.clicks.degrees(np.arange(num_queries)).max(initial=0))
    for start in range(0, num_queries, QUERIES_PER_BLOCK):
        rows = np.arange(start, min(start + QUERIES_PER_BLOCK, num_queries))
        near = seen.nearest(data.queries.take(rows), count + most).rows
        position, clicked = data.clicks.gather(rows)
        span = len(seen.ids) + 1
        own = np.isin(np.arange(len(rows))[:, None] * span + near, position * span + clicked)
        order = np.argsort(own, axis=1, kind="stable")[:, :count]
        kept = np.where(own, -1, near)
        shortlists[rows] = np.take_along_axis(kept, order, 1)
    return shortlists


def train_classifiers(
    training: ClassifierTraining,
    sampler: StepSampler,
    settings: HingeSettings,
    shortlists: NDArray[np.int32],
    steps: range,
) -> Iterator[Tensor]:
    """Train the classifiers for ``steps``; yields each step's loss of this worker, not yet summed.

    Row r of the classifiers is that of seen ad r.
    """
    loss = TripletLoss(settings.margin, settings.num_negatives)
    for number in steps:
        step = sampler.draw(number, shortlists)
        with seeded_dropout(sampler.seed, number, sampler.device):
            queries = functional.dropout(sampler.query_vectors(step), settings.dropout)
        pool = training.rows(step.pool)
        losses = loss(queries @ pool.T, step.positives, step.is_positive)
        value = losses.sum() / sampler.batch_size
        value.backward()
        assert pool.grad is not None
        training.update(step.pool, pool.grad)
        yield value.detach()


def initial_classifiers(seen: SeenAds, device: torch.device) -> Tensor:
    """Return a copy of the ads' classifiers (S, D), from which their training starts."""
    return torch.from_numpy(seen.classifiers.copy()).to(device)
