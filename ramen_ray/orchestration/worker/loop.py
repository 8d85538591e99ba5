"""What every worker runs: train, validate, checkpoint, resume after a lost worker."""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen_ray.config import write_config
from ramen_ray.data.store.checksums import check_intact, write_checksums
from ramen_ray.method.distributed import world
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.sampling.step_inputs import pool_figures
from ramen_ray.method.training.checkpoints import (
    restore_checkpoint,
    save_checkpoint,
    save_shares,
)
from ramen_ray.method.training.step import TrainState, train_steps
from ramen_ray.method.training.step_losses import (
    StepLosses,
    check_losses,
    check_weights,
    global_losses,
)
from ramen_ray.orchestration.runs.components import (
    add_free_vectors,
    build_model,
    build_propensity,
    build_state,
    held_classifiers,
)
from ramen_ray.orchestration.runs.identity import check_meanwhile
from ramen_ray.orchestration.runs.run_directory import CONFIG_FILE, IDENTITY_FILE
from ramen_ray.orchestration.runs.task import WorkerResult, WorkerTask
from ramen_ray.orchestration.worker.final_evaluation import (
    NOT_VALIDATED,
    VALIDATION,
    evaluate_best,
)
from ramen_ray.orchestration.worker.host import REPORT_FILE, SCORE, Host
from ramen_ray.orchestration.worker.setup import Setup, set_up

STEPS_PER_LOG = 50
CHECKPOINT_FOLDER = "checkpoint_{:09d}"


@dataclass
class Progress:
    """What checkpoints keep besides the training state; plain values."""

    best: float = NOT_VALIDATED
    validations_since_best: int = 0
    trained_seconds: float = 0.0
    background: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Progress of each background task, by name, when the checkpoint was written."""


@dataclass
class Training:
    """A worker's run in progress: the model, and what changes as it is trained."""

    setup: Setup
    model: DualEncoder
    state: TrainState
    progress: Progress
    first_step_at: float | None = None


def run_worker(task: WorkerTask, host: Host) -> WorkerResult:
    """Train to the end in this process, then evaluate the best model and the untrained one."""
    entered_at = time.time()
    setup = set_up(task, host)
    try:
        run = start_or_resume(setup)
        train(run)
    finally:
        for one in setup.background:
            one.cancel()
    for one in setup.background:
        one.keep_only_taken()
    setup.local.forget(setup.folder)
    evaluation = evaluate_best(
        setup,
        _untrained_model(setup),
        lambda folder: load_model(folder, held_classifiers(setup.config, setup.data)).to(
            setup.device
        ),
        lambda model, split: measure(setup, model, split),
    )
    return WorkerResult(
        evaluation,
        run.progress.trained_seconds,
        sum(one.waited_s for one in setup.background),
        entered_at,
        run.first_step_at or entered_at,
    )


def start_or_resume(setup: Setup) -> Training:
    """Build the model and its training state, new or from the last checkpoint."""
    last = setup.host.last_checkpoint()
    if last is None:
        run = _new_run(setup, _untrained_model(setup))
        for one in setup.background:
            one.forget_after(0)
        run.state.advance()
        return run
    check_intact(last)
    model = load_model(last, held_classifiers(setup.config, setup.data))
    run = _new_run(setup, _to_train(model, setup.device))
    run.progress = Progress(**restore_checkpoint(last, run.state))
    for one in setup.background:
        one.forget_after(run.state.step)
        progress = run.progress.background[one.name]
        run.state.draws = one.restore(progress, run.state.draws)
    return run


def _untrained_model(setup: Setup) -> DualEncoder:
    """Build the model that training starts from, on this worker's device.

    It is built in each attempt, and again for the evaluation at the end.

    Raises:
        RunError: the encoder is not the one that the run began with.
    """
    model = build_model(setup.config).to(setup.device)
    expected = {"encoder": setup.made_from["encoder"]}
    check_meanwhile(expected, {"encoder": content_of(setup.config.encoder.pretrained)})
    return add_free_vectors(setup.config, model, setup.data)


def _to_train(model: DualEncoder, device: torch.device) -> DualEncoder:
    """Move a loaded model to a device, and its classifiers too, which otherwise stay mapped."""
    if model.classifiers is not None:
        vectors = model.classifiers.vectors.to(device)
        model.classifiers = replace(model.classifiers, vectors=vectors)
    return model.to(device)


def _new_run(setup: Setup, model: DualEncoder) -> Training:
    keep_tokens(model.encoder, setup.data.occurring_tokens)
    trained = setup.host.prepare_model(model)
    state = build_state(setup.config, model, trained, setup.sampler)
    return Training(setup, model, state, Progress())


def train(run: Training) -> None:
    """Train from the present step to the last, with validations and checkpoints on the way."""
    setup, state = run.setup, run.state
    training, steps_per_epoch = setup.config.training, setup.sampler.steps_per_epoch
    for stop in stops(setup, state.step):
        if _is_stopped_early(run):
            return
        if state.step and state.step % steps_per_epoch == 0:
            take_background_results(run)
        losses = train_until(run, stop)
        epoch, rest = divmod(stop, steps_per_epoch)
        metrics: dict[str, float] = {}
        check_weights(run.model, stop)
        if not rest and (epoch % training.validate_every == 0 or stop == setup.total_steps):
            metrics = validate(run)
        figures = {} if rest else pool_of_last_batch(run, stop)
        if setup.log is not None:
            setup.log.log_figures("pool", figures, stop)
            shown = f"{epoch + bool(rest)}/{training.epochs}"
            setup.log.show_epoch(shown, stop, losses.means, metrics)
            setup.log.log_validation(_prefixed(metrics), stop)
        started = time.monotonic()
        state.advance()
        run.progress.trained_seconds += time.monotonic() - started
        report(run, metrics)


def pool_of_last_batch(run: Training, stop: int) -> dict[str, float]:
    """Return figures of the pool of the last step before ``stop``, if the loss sees all of it."""
    setup = run.setup
    if setup.config.base.parts.loss == "triplet":
        return {}
    batch = setup.sampler.draw(stop - 1, run.state.draws, []).gathered(setup.device)
    return pool_figures(batch, setup.sampler.data.clicks)


def stops(setup: Setup, step: int) -> Iterator[int]:
    """Yield the steps after ``step`` at which a checkpoint is written."""
    every = setup.config.training.checkpoint_every_steps
    steps = set(range(0, setup.total_steps + 1, setup.sampler.steps_per_epoch))
    if every is not None:
        steps |= set(range(every, setup.total_steps, every))
    yield from sorted(stop for stop in steps if stop > step)


def _is_stopped_early(run: Training) -> bool:
    patience = run.setup.config.training.early_stop_patience
    return patience is not None and run.progress.validations_since_best >= patience


def take_background_results(run: Training) -> None:
    """At the start of an epoch, take finished background results and start what is due."""
    step = run.state.step
    checkpoint = run.setup.folder / CHECKPOINT_FOLDER.format(step)
    for one in run.setup.background:
        run.state.draws, figures = one.advance(step, checkpoint, run.state.draws)
        if run.setup.log is not None:
            run.setup.log.log_background(one.name, figures, step)


def train_until(run: Training, stop: int) -> StepLosses:
    """Train up to step ``stop``; returns the losses of the steps."""
    setup, state = run.setup, run.state
    started, first = time.monotonic(), state.step
    waiting: list[Tensor] = []
    weights: list[Tensor] = []
    trained: list[NDArray[np.float32]] = []
    for losses in train_steps(
        state,
        setup.sampler,
        setup.objective,
        stop,
        use_bf16=setup.use_bf16,
        max_gradient_norm=setup.config.optimizer.max_gradient_norm,
    ):
        run.first_step_at = run.first_step_at or time.time()
        if setup.log is not None:
            setup.log.show_step(state.step)
        waiting.append(losses)
        if setup.config.regularization.adaptive:
            weights.append(state.weights)
        if len(waiting) == STEPS_PER_LOG or state.step == stop:
            trained.append(global_losses(waiting))
            check_losses(trained[-1], setup.objective.names, state.step)
            seconds = time.monotonic() - started
            if setup.log is not None:
                speed = (state.step - first) * setup.sampler.batch_size / seconds
                setup.log.log_steps(trained[-1], weights, state.step, speed)
            waiting, weights = [], []
    run.progress.trained_seconds += time.monotonic() - started
    return StepLosses.from_terms(setup.objective, first, np.concatenate(trained))


def validate(run: Training) -> dict[str, float]:
    """Evaluate the model on the validation split, and note whether it is the best so far."""
    metrics, _ = measure(run.setup, run.model, "validation")
    score = metrics[run.setup.config.training.selection_metric]
    run.progress.validations_since_best += 1
    if score > run.progress.best:
        run.progress.best = score
        run.progress.validations_since_best = 0
    return metrics


def measure(setup: Setup, model: DualEncoder, split: str) -> tuple[dict[str, float], TopK]:
    """Evaluate a model on a split; returns the metrics and the best ads of each query."""
    return evaluate(model, setup.data, split, build_propensity(setup.config), setup.use_bf16)


def report(run: Training, metrics: dict[str, float]) -> None:
    """Write a checkpoint, and wait until the run can go on from it."""
    setup, state = run.setup, run.state
    score = metrics.get(setup.config.training.selection_metric, NOT_VALIDATED)
    epoch = state.step / setup.sampler.steps_per_epoch
    reported = {"step": state.step, "epoch": epoch, SCORE: score, **_prefixed(metrics)}
    (rank, num_workers), is_shared = world(), any(part.is_shared for part in state.parts)
    with tempfile.TemporaryDirectory() as folder:
        if rank:
            save_shares(Path(folder), state)
        else:
            run.progress.background = {one.name: one.progress for one in setup.background}
            max_length, progress = setup.config.encoder.max_length, asdict(run.progress)
            save_checkpoint(Path(folder), run.model, state, max_length, progress)
            write_config(setup.config, Path(folder) / CONFIG_FILE)
            (Path(folder) / IDENTITY_FILE).write_text(json.dumps(setup.made_from) + "\n")
            (Path(folder) / REPORT_FILE).write_text(json.dumps(reported) + "\n")
        if rank == 0 or is_shared:
            write_checksums(Path(folder), rank, num_workers if is_shared else 1)
        own = Path(folder) if rank == 0 or is_shared else None
        setup.host.report(reported, own, CHECKPOINT_FOLDER.format(state.step))


def _prefixed(metrics: dict[str, float]) -> dict[str, float]:
    return {VALIDATION + name: value for name, value in metrics.items()}
