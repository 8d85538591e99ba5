"""Short trainings without Ray, on one worker or two: what several tests train, save and resume."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support import run_in_two_processes
from torch import distributed, nn

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.encoder import Encoder, build_bag, build_transformer
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.encoded import StepPart
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.state import (
    TrainState,
    build_optimizer,
    build_schedule,
    save_checkpoint,
)
from ramen_ray.method.training.step import global_losses, train_steps
from ramen_ray.orchestration.run.build import (
    build_classifiers,
    build_model,
    build_objective,
    build_state,
    build_training_data,
    held_classifiers,
)
from ramen_ray.orchestration.run.build import build_sampler as configured_sampler


def build_encoder(kind: str, folder: str) -> Encoder:
    """Build an encoder of the kind ``bag`` or ``transformer``."""
    return build_bag(folder) if kind == "bag" else build_transformer(folder)


def build_sampler(data: Prepared, objective: Objective, **settings: Any) -> Sampler:
    """Build a sampler of batches of 16."""
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    return Sampler(training_data, 16, seed=3, **settings)


class Run:
    """A training: its model, objective, sampler and state, before the first step."""

    def __init__(
        self,
        encoder: Encoder,
        sampler: Sampler,
        objective: Objective,
        parts: Sequence[StepPart] = (),
        rates: tuple[float, float, float | None] = (5e-3, 0.01, None),
        schedule: tuple[int, int] = (4, 40),
    ) -> None:
        """Begin; ``rates`` are lr, weight decay and the embeddings' lr."""
        self.model = DualEncoder(encoder)
        self.sampler = sampler
        self.objective = objective
        trained: nn.Module = self.model
        if distributed.is_initialized():
            trained = nn.parallel.DistributedDataParallel(trained)
        optimizer = build_optimizer(encoder, *rates)
        sources = SamplingSources(sampler.data.graphs)
        self.state = TrainState(
            trained, optimizer, build_schedule(optimizer, *schedule), sources, parts=parts
        )

    def train(self, stop: int, **settings: Any) -> list[list[float]]:
        """Return the losses (steps, terms) up to a step."""
        steps = train_steps(self.state, self.sampler, self.objective, stop, **settings)
        return global_losses(list(steps)).tolist()

    def weights(self, stop: int) -> list[list[float]]:
        """Train up to a step; returns the weights of each step's losses (steps, terms)."""
        steps = train_steps(self.state, self.sampler, self.objective, stop)
        return [self.state.weights.tolist() for _ in steps]

    def save(self, folder: Path, **progress: Any) -> None:
        """Write a checkpoint."""
        self.model.save(folder, 16)
        save_checkpoint(folder, self.state, progress)

    @property
    def parameters(self) -> torch.Tensor:
        """All parameters of the model."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()


class ConfiguredRun(Run):
    """A training that is built of a configuration, or goes on with the model in a folder."""

    def __init__(self, config: RunConfig, data: Prepared, folder: Path | None = None) -> None:
        self.config = config
        self.data = data
        self.objective = build_objective(config)
        if folder is not None:
            self.model = load_model(folder, held_classifiers(config, data))
        else:
            self.model = build_model(config)
            if self.model.classifier_head is not None:
                self.model.classifiers = build_classifiers(config, self.model, data)
        training_data = build_training_data(config, data, self.objective.regularizers)
        self.sampler = configured_sampler(config, data, training_data)
        self.state = build_state(config, self.model, self.model, self.sampler, self.objective)


def train_here(train: Callable[[Any], Any], *_: object, **context: Any) -> Any:
    """Train in this process, whose worker's ``context`` may be another, in place of in workers."""
    from ramen_ray.orchestration.run.processes import only_worker  # other trainings need no Ray

    precision = torch.get_float32_matmul_precision()
    try:
        return train(replace(only_worker(), **context))
    finally:
        torch.set_float32_matmul_precision(precision)


def fit_here(config: RunConfig, **context: Any) -> Any:
    """Fit in this process; returns a TrainResult."""
    from ramen_ray.orchestration.run.fit import fit_on
    from ramen_ray.orchestration.run.identity import Inputs

    return fit_on(Inputs.of(config), partial(train_here, **context))


def run_two_workers(worker: Callable[..., None], folder: Path, *arguments: object) -> None:
    """Run ``worker(rank, folder, *arguments)`` in two processes of a group."""
    run_in_two_processes(_in_group, worker, folder, *arguments)


def _in_group(rank, worker, folder, *arguments):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    worker(rank, folder, *arguments)
    gc.collect()  # a DDP model that outlives the process group can deadlock when it is freed
    distributed.destroy_process_group()
