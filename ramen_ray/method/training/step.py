"""The training step: take a batch, encode its distinct texts once, compute losses, update."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.method.distributed import sum_over_workers, world
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import Sampler, Sources
from ramen_ray.method.sampling.curriculum import Curriculum
from ramen_ray.method.sampling.encoded import EncodedBatch, encode
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.training.augmentation_training import AugmentationTraining
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.prefetching import step_inputs


@dataclass
class TrainState:
    """What a run changes as it goes.

    Attributes:
        model: the model that is trained, or its wrapper for several workers.
        optimizer: the optimiser of its parameters.
        schedule: the schedule of the learning rate.
        sources: what batches are drawn from at present.
        step: number of steps done; all random draws depend on it.
        adaptive: adapts the terms' weights; None to keep those of the objective.
        curriculum: makes clusters of queries; None for random order.
        classifiers: the ads' classifiers in training; None if the model has none.
        augmentation: enriches queries with their anchors (OAK); None if the model has no bank.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    sources: Sources
    step: int = 0
    adaptive: AdaptiveWeights | None = None
    curriculum: Curriculum | None = None
    classifiers: ClassifierTraining | None = None
    augmentation: AugmentationTraining | None = None

    def advance_curriculum(self) -> None:
        """Let the curriculum prepare for the next steps, and use its clusters."""
        if self.curriculum is not None:
            self.curriculum.advance(self.step)
            self.sources = replace(self.sources, clusters=self.curriculum.clusters)


def train_steps(
    state: TrainState,
    sampler: Sampler,
    objective: Objective,
    stop: int,
    *,
    use_bf16: bool = False,
    max_gradient_norm: float | None = None,
) -> Iterator[Tensor]:
    """Train from ``state.step`` up to step ``stop``; yields this worker's losses (terms,) of each.

    The yielded losses stay on the device, so that no step waits for them. All batches are drawn
    from the sources that ``state`` has at the beginning.
    """
    device = next(state.model.parameters()).device
    num_workers = world()[1]
    weights = torch.tensor(objective.weights, device=device)
    classifiers_of = None if state.classifiers is None else state.classifiers.rows
    encode_batch: Callable[[StepInputs], EncodedBatch] = partial(
        encode, state.model, use_bf16=use_bf16, classifiers_of=classifiers_of
    )
    if state.augmentation is not None:
        encode_batch = state.augmentation.after(encode_batch)
    steps = range(state.step, stop)
    with closing(step_inputs(sampler, state.sources, objective, steps, device)) as batches:
        for inputs in batches:
            encoded = encode_batch(inputs)
            losses = objective.losses(encoded, state.step)
            if state.curriculum is not None:
                state.curriculum.observe(encoded)
            if state.adaptive is not None:
                state.adaptive.observe(encoded)  # before the update: this step has the new weights
                weights = state.adaptive.weights
            loss = (losses * weights).sum() * num_workers  # DDP averages gradients over the workers
            state.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if max_gradient_norm is not None:
                nn.utils.clip_grad_norm_(state.model.parameters(), max_gradient_norm)
            state.optimizer.step()
            state.schedule.step()
            if state.classifiers is not None and encoded.classifiers_Ld is not None:
                state.classifiers.update(encoded.ad_pool.ids, encoded.classifiers_Ld.grad)
            if state.augmentation is not None:
                state.augmentation.update()
            state.step += 1
            yield losses.detach()


def global_losses(steps: list[Tensor]) -> NDArray[np.float32]:
    """Sum the workers' parts of several steps' losses into global values (steps, terms)."""
    return sum_over_workers(torch.stack(steps)).float().cpu().numpy()
