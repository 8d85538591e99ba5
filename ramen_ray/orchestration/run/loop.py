"""What every worker runs: train, validate, checkpoint, resume after a lost worker."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ramen_ray.config import write_config
from ramen_ray.method.distributed import world
from ramen_ray.method.sampling.step_inputs import pool_figures
from ramen_ray.method.training.checkpoints import save_checkpoint, save_shares
from ramen_ray.method.training.step import train_steps
from ramen_ray.method.training.step_losses import (
    StepLosses,
    check_losses,
    check_weights,
    global_losses,
)
from ramen_ray.orchestration.run.checkpoints import CHECKPOINT_FOLDER, SCORE
from ramen_ray.orchestration.run.directory import CONFIG_FILE, IDENTITY_FILE
from ramen_ray.orchestration.run.evaluation import evaluate_best, measure
from ramen_ray.orchestration.run.setup import (
    NOT_VALIDATED,
    Process,
    Setup,
    Training,
    set_up,
    start_or_resume,
)
from ramen_ray.orchestration.run.task import VALIDATION, WorkerResult, WorkerTask

STEPS_PER_LOG = 50


def run_worker(task: WorkerTask, process: Process) -> WorkerResult:
    """Train to the end in this process, then evaluate the best model and the untrained one."""
    entered_at = time.time()
    setup = set_up(task, process)
    try:
        run = start_or_resume(setup)
        train(run)
    finally:
        for one in setup.background:
            one.cancel()
    for one in setup.background:
        one.keep_only_taken()
    setup.local.forget(setup.folder)
    evaluation = evaluate_best(setup)
    return WorkerResult(
        evaluation,
        run.progress.trained_seconds,
        sum(one.waited_s for one in setup.background),
        entered_at,
        run.first_step_at or entered_at,
    )


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
    batch = setup.sampler.draw(stop - 1, run.state.draws, []).gathered()
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


def report(run: Training, metrics: dict[str, float]) -> None:
    """Write a checkpoint from which the run can go on, and report it."""
    setup, state = run.setup, run.state
    score = metrics.get(setup.config.training.selection_metric, NOT_VALIDATED)
    epoch = state.step / setup.sampler.steps_per_epoch
    reported = {"step": state.step, "epoch": epoch, SCORE: score, **_prefixed(metrics)}
    is_shared = any(part.is_shared for part in state.parts)
    with setup.checkpoints.written(reported, is_shared) as folder:
        if world()[0] == 0:
            run.progress.background = {one.name: one.progress for one in setup.background}
            max_length, progress = setup.config.encoder.max_length, asdict(run.progress)
            save_checkpoint(folder, run.model, state, max_length, progress)
            write_config(setup.config, folder / CONFIG_FILE)
            (folder / IDENTITY_FILE).write_text(json.dumps(setup.made_from) + "\n")
        elif is_shared:
            save_shares(folder, state)
    setup.process.report(reported)


def _prefixed(metrics: dict[str, float]) -> dict[str, float]:
    return {VALIDATION + name: value for name, value in metrics.items()}
