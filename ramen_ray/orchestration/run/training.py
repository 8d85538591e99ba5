"""Every training, whatever the model: its plan, what it has, and how it starts or goes on."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from ramen_ray.config import TrainingConfig
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.errors import first_line_of
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.training.state import (
    CheckpointError,
    TrainState,
    restore_checkpoint,
)
from ramen_ray.orchestration.background.task import BackgroundTask
from ramen_ray.orchestration.run.checkpoints import Checkpoints
from ramen_ray.orchestration.run.progress import RunLog
from ramen_ray.orchestration.run.workers import Process

NOT_VALIDATED = -1.0  # the score of a model that was not validated: below all others

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Plan:
    """When a training writes checkpoints, validates and ends, in numbers of steps done."""

    steps_per_epoch: int
    checkpoints: Sequence[int]  # ascending; the last of them ends the training
    validations: Collection[int] = ()  # those of them at which the model is validated
    metric: str = ""  # the validation metric by which one model is better than another
    # validations without a better model that end the training early; None for none
    patience: int | None = None

    @classmethod
    def of_run(cls, training: TrainingConfig, steps_per_epoch: int) -> "Plan":
        """Plan as a run's configuration says."""
        total, every = steps_per_epoch * training.epochs, training.checkpoint_every_steps
        epochs = range(steps_per_epoch, total + 1, steps_per_epoch)
        between = range(every, total, every) if every is not None else ()
        validations = {*epochs[training.validate_every - 1 :: training.validate_every], total}
        return cls(
            steps_per_epoch,
            sorted({*epochs, *between}),
            validations,
            training.selection_metric,
            training.early_stop_patience,
        )

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        return self.checkpoints[-1]


@dataclass(frozen=True, kw_only=True)
class Setup(ABC, Generic[Model]):
    """What a worker trains with; it stays the same during training."""

    folder: Path  # the run's
    process: Process
    checkpoints: Checkpoints
    plan: Plan
    objective: Objective
    sampler: Sampler  # draws this worker's share of the batches
    log: RunLog | None  # None but on the first worker
    advice: str  # what to do if losses or weights are not finite
    # the run's background tasks; these keep track of their own work
    background: Sequence[BackgroundTask] = ()
    use_bf16: bool = False
    max_gradient_norm: float | None = None  # gradients are clipped to it; None for no limit

    @abstractmethod
    def new_model(self) -> Model:
        """Build the model that training starts from, on this worker's device."""

    @abstractmethod
    def open_model(self, checkpoint: Path) -> Model:
        """Open the model of a checkpoint, to train it further on this worker's device."""

    @abstractmethod
    def new_state(self, model: Model) -> TrainState:
        """Build what changes besides the model, as it is before the first step."""

    @abstractmethod
    def save_model(self, model: Model, checkpoint: Path) -> None:
        """Write the model, and what is needed to use it, into a checkpoint."""

    def validate(self, model: Model) -> dict[str, float]:
        """Return the validation metrics of a model, on every worker the same."""
        return {}

    def figures_of_batch(self, step: int, state: TrainState) -> dict[str, float]:
        """Return what is logged of a step's batch, at the end of each epoch."""
        return {}


@dataclass
class Progress:
    """What checkpoints keep besides the training state; plain values."""

    best: float = NOT_VALIDATED
    validations_since_best: int = 0
    trained_seconds: float = 0.0
    background: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Progress of each background task, by name, when the checkpoint was written."""


@dataclass
class Training(Generic[Model]):
    """A worker's run in progress: the model, and what changes as it is trained."""

    setup: Setup[Model]
    model: Model
    state: TrainState
    progress: Progress = field(default_factory=Progress)
    first_step_at: float | None = None


def start_or_resume(setup: Setup[Model]) -> Training[Model]:
    """Build the model and its training state, new or from the last checkpoint.

    Raises:
        DamagedError: the last checkpoint is damaged.
        CheckpointError: another version of the software has written it.
    """
    last = setup.checkpoints.last()
    if last is None:
        model = setup.new_model()
        run = Training(setup, model, setup.new_state(model))
        for one in setup.background:
            one.forget_after(0)
        run.state.advance()
        return run
    check_intact(last.folder)
    try:
        model = setup.open_model(last.folder)
        run = Training(setup, model, setup.new_state(model))
        run.progress = Progress(**restore_checkpoint(last.folder, run.state))
        for one in setup.background:
            one.forget_after(run.state.step)
            run.state.draws = one.restore(run.progress.background[one.name], run.state.draws)
        return run
    except torch.OutOfMemoryError:  # a RuntimeError that says nothing of the checkpoint
        raise
    except (FileNotFoundError, LookupError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"cannot go on from {last.folder}: {first_line_of(error)}; if another version of "
            f"ramen_ray has written it, delete {setup.folder} to train from the start"
        ) from error
