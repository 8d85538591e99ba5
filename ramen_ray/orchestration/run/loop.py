"""Every training, whatever the model: its plan, how it starts or goes on, and its loop."""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.config import TrainingConfig
from ramen_ray.data.store.made_folder import check_intact
from ramen_ray.errors import first_line_of
from ramen_ray.method.distributed import is_first_worker
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.training.state import (
    CheckpointError,
    TrainState,
    restore_checkpoint,
    save_checkpoint,
    save_shares,
)
from ramen_ray.method.training.step import (
    StepLosses,
    check_losses,
    check_weights,
    global_losses,
    train_steps,
)
from ramen_ray.orchestration.background.task import BackgroundTask
from ramen_ray.orchestration.run.checkpoints import CHECKPOINT_FOLDER, SCORE, Checkpoints
from ramen_ray.orchestration.run.processes import VALIDATION, WorkerContext
from ramen_ray.orchestration.run.progress import RunLog
from ramen_ray.tracking.runs import Run, prefixed

STEPS_PER_LOG = 50
STEPS_PER_QUESTION = 10  # whether a machine leaves: all workers wait for each other to answer it
IS_LAST = "is_last"  # in what is reported: whether the training ends here
SHARE_DONE = "share_done"  # and the share of it that is done
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
        total = steps_per_epoch * training.epochs
        every = training.checkpoint_every_steps
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
    worker: WorkerContext  # its process
    plan: Plan
    objective: Objective
    sampler: Sampler  # draws this worker's share of the batches
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
    """A training in progress: the model, and what changes as it is trained."""

    setup: Setup[Model]
    model: Model
    state: TrainState
    checkpoints: Checkpoints
    log: RunLog | None  # None but on the first worker
    progress: Progress = field(default_factory=Progress)
    first_step_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has done its last step, or was validated often enough without a better one."""
        plan = self.setup.plan
        is_patient = plan.patience is None or self.progress.validations_since_best < plan.patience
        return self.state.step == plan.total_steps or not is_patient


def start_or_resume(setup: Setup[Model], logged: Run) -> Training[Model]:
    """Build the model and its training state, new or from the last checkpoint.

    Raises a DamagedError, or a CheckpointError if another version of the software has written it.
    """
    checkpoints = Checkpoints(setup.folder, setup.worker.device)
    log = RunLog(logged, setup.folder, setup.objective, setup.plan.total_steps)
    kept_with = checkpoints, log if is_first_worker() else None
    last = checkpoints.last()
    for task in setup.background:
        task.forget_after(0 if last is None else last.step)
    if last is None:
        model = setup.new_model()
        training = Training(setup, model, setup.new_state(model), *kept_with)
        training.state.prepare_next_steps()
        return training
    check_intact(last.folder)
    try:
        model = setup.open_model(last.folder)
        training = Training(setup, model, setup.new_state(model), *kept_with)
        state = training.state
        training.progress = Progress(**restore_checkpoint(last.folder, state))
        for task in setup.background:
            state.sources = task.restore(training.progress.background[task.name], state.sources)
        return training
    except torch.OutOfMemoryError:  # a RuntimeError that says nothing of the checkpoint
        raise
    except (FileNotFoundError, LookupError, RuntimeError, TypeError) as error:
        # files, names, shapes or fields that this version of the software does not have
        raise CheckpointError(
            f"cannot go on from {last.folder}: {first_line_of(error)}; if another version of "
            f"ramen_ray has written it, delete {setup.folder} to train from the start"
        ) from error


def train(training: Training[Model]) -> None:
    """Train from the present step to the last, with validations and checkpoints on the way."""
    setup = training.setup
    state = training.state
    plan = training.setup.plan
    while not training.is_over:
        if state.step and state.step % plan.steps_per_epoch == 0:  # a checkpoint may lie within
            take_background_results(training)
        losses = train_until(training, next(step for step in plan.checkpoints if step > state.step))
        stop = state.step
        check_weights(training.model, stop, setup.advice)
        metrics = validate(training) if stop in plan.validations else {}
        epoch, rest = divmod(stop, plan.steps_per_epoch)
        if training.log is not None:
            shown = f"{epoch + bool(rest)}/{plan.total_steps // plan.steps_per_epoch}"
            weights = dict(zip(setup.objective.names, state.weights.tolist(), strict=True))
            used = {name: loss for name, loss in losses.means.items() if weights[name]}
            training.log.log_epoch(shown, stop, used, metrics)
        started = time.monotonic()
        # before the checkpoint, so that a resumed run need not do it again
        state.prepare_next_steps()
        training.progress.trained_seconds += time.monotonic() - started
        write_checkpoint(training, metrics)


def take_background_results(training: Training[Model]) -> None:
    """At the start of an epoch, take finished background results and start what is due."""
    step = training.state.step
    checkpoint = training.setup.folder / CHECKPOINT_FOLDER.format(step)
    for task in training.setup.background:
        training.state.sources, figures = task.advance(step, checkpoint, training.state.sources)
        if training.log is not None:
            training.log.log_background(task.name, figures, step)


def train_until(training: Training[Model], stop: int) -> StepLosses:
    """Train to step ``stop``, or until a machine is about to leave; returns the steps' losses."""
    setup = training.setup
    state = training.state
    started = time.monotonic()
    first = state.step
    is_adaptive = any(part.moves_weights for part in state.parts)
    waiting: list[Tensor] = []
    weights: list[Tensor] = []
    trained: list[NDArray[np.float32]] = []
    for losses in train_steps(
        state,
        setup.sampler,
        setup.objective,
        stop,
        use_bf16=setup.use_bf16,
        max_gradient_norm=setup.max_gradient_norm,
    ):
        training.first_step_at = training.first_step_at or time.time()
        if training.log is not None:
            training.log.show_step(state.step)
        waiting.append(losses)
        if is_adaptive:
            weights.append(state.weights)
        asks = state.step % STEPS_PER_QUESTION == 0
        ends = state.step == stop or (asks and setup.worker.machine_leaves())
        # Reading losses waits for the device and for other workers, so it is done now and again.
        if len(waiting) == STEPS_PER_LOG or ends:
            trained.append(global_losses(waiting))
            check_losses(trained[-1], setup.objective.names, state.step, setup.advice)
            seconds = time.monotonic() - started
            if training.log is not None:
                speed = (state.step - first) * setup.sampler.batch_size / seconds
                training.log.log_steps(trained[-1], weights, state.step, speed)
            waiting = []
            weights = []
        if ends:
            break
    training.progress.trained_seconds += time.monotonic() - started
    return StepLosses.from_terms(setup.objective, first, np.concatenate(trained))


def validate(training: Training[Model]) -> dict[str, float]:
    """Evaluate the model on the validation split, and note whether it is the best so far."""
    metrics = training.setup.validate(training.model)
    score = metrics[training.setup.plan.metric]
    training.progress.validations_since_best += 1
    if score > training.progress.best:
        training.progress.best = score
        training.progress.validations_since_best = 0
    return metrics


def write_checkpoint(training: Training[Model], metrics: dict[str, float]) -> None:
    """Write a checkpoint from which the run can go on, and report its ``metrics``."""
    setup = training.setup
    state = training.state
    score = metrics.get(setup.plan.metric, NOT_VALIDATED)
    epoch = state.step / setup.plan.steps_per_epoch
    reported = {
        "step": state.step,
        "epoch": epoch,
        IS_LAST: training.is_over,
        SHARE_DONE: state.step / setup.plan.total_steps,
        SCORE: score,
        "trained_seconds": training.progress.trained_seconds,
        **prefixed(VALIDATION, metrics),
    }
    is_shared = any(part.is_shared for part in state.parts)
    with training.checkpoints.written(reported, is_shared) as folder:
        if is_first_worker():
            training.progress.background = {task.name: task.progress for task in setup.background}
            setup.save_model(training.model, folder)
            save_checkpoint(folder, state, asdict(training.progress))
        elif is_shared:
            save_shares(folder, state)
    setup.worker.report(reported)
