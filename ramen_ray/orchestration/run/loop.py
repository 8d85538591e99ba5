"""The loop of every training: steps, validations, checkpoints, background results."""

import time
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ramen_ray.method.distributed import world
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.training.state import save_checkpoint, save_shares
from ramen_ray.method.training.step import train_steps
from ramen_ray.method.training.step_losses import (
    StepLosses,
    check_losses,
    check_weights,
    global_losses,
)
from ramen_ray.orchestration.run.checkpoints import CHECKPOINT_FOLDER, SCORE
from ramen_ray.orchestration.run.training import NOT_VALIDATED, Model, Training
from ramen_ray.orchestration.run.workers import VALIDATION
from ramen_ray.tracking.runs import prefixed

STEPS_PER_LOG = 50


def train(run: Training[Model]) -> None:
    """Train from the present step to the last, with validations and checkpoints on the way."""
    setup, state, plan = run.setup, run.state, run.setup.plan
    for stop in [step for step in plan.checkpoints if step > state.step]:
        if plan.patience is not None and run.progress.validations_since_best >= plan.patience:
            return
        if state.step and state.step % plan.steps_per_epoch == 0:  # a checkpoint may lie within
            take_background_results(run)
        losses = train_until(run, stop)
        check_weights(run.model, stop, setup.advice)
        metrics = validate(run) if stop in plan.validations else {}
        epoch, rest = divmod(stop, plan.steps_per_epoch)
        figures = {} if rest else setup.figures_of_batch(stop - 1, state)
        if setup.log is not None:
            setup.log.steps.log_figures("pool", figures, stop)
            shown = f"{epoch + bool(rest)}/{plan.total_steps // plan.steps_per_epoch}"
            setup.log.log_epoch(shown, stop, losses.means, metrics)
        started = time.monotonic()
        state.advance()
        run.progress.trained_seconds += time.monotonic() - started
        report(run, metrics)


def take_background_results(run: Training[Model]) -> None:
    """At the start of an epoch, take finished background results and start what is due."""
    step = run.state.step
    checkpoint = run.setup.folder / CHECKPOINT_FOLDER.format(step)
    for one in run.setup.background:
        run.state.draws, figures = one.advance(step, checkpoint, run.state.draws)
        if run.setup.log is not None:
            run.setup.log.log_background(one.name, figures, step)


def train_until(run: Training[Model], stop: int) -> StepLosses:
    """Train up to step ``stop``; returns the losses of the steps."""
    setup, state = run.setup, run.state
    started, first = time.monotonic(), state.step
    is_adaptive = any(isinstance(part, AdaptiveWeights) for part in state.parts)
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
        run.first_step_at = run.first_step_at or time.time()
        if setup.log is not None:
            setup.log.show_step(state.step)
        waiting.append(losses)
        if is_adaptive:
            weights.append(state.weights)
        # Reading losses waits for the device and for other workers, so it is done now and again.
        if len(waiting) == STEPS_PER_LOG or state.step == stop:
            trained.append(global_losses(waiting))
            check_losses(trained[-1], setup.objective.names, state.step, setup.advice)
            seconds = time.monotonic() - started
            if setup.log is not None:
                speed = (state.step - first) * setup.sampler.batch_size / seconds
                setup.log.log_steps(trained[-1], weights, state.step, speed)
            waiting, weights = [], []
    run.progress.trained_seconds += time.monotonic() - started
    return StepLosses.from_terms(setup.objective, first, np.concatenate(trained))


def validate(run: Training[Model]) -> dict[str, float]:
    """Evaluate the model on the validation split, and note whether it is the best so far."""
    metrics = run.setup.validate(run.model)
    score = metrics[run.setup.plan.metric]
    run.progress.validations_since_best += 1
    if score > run.progress.best:
        run.progress.best = score
        run.progress.validations_since_best = 0
    return metrics


def report(run: Training[Model], metrics: dict[str, float]) -> None:
    """Write a checkpoint from which the run can go on, and report it."""
    setup, state = run.setup, run.state
    score = metrics.get(setup.plan.metric, NOT_VALIDATED)
    epoch = state.step / setup.plan.steps_per_epoch
    named = prefixed(VALIDATION, metrics)
    reported = {"step": state.step, "epoch": epoch, SCORE: score, **named}
    is_shared = any(part.is_shared for part in state.parts)
    with setup.checkpoints.written(reported, is_shared) as folder:
        if world()[0] == 0:
            run.progress.background = {one.name: one.progress for one in setup.background}
            setup.save_model(run.model, folder)
            save_checkpoint(folder, state, asdict(run.progress))
        elif is_shared:
            save_shares(folder, state)
    setup.process.report(reported)
