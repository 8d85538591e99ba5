"""What worker 0 logs while a run trains: figures to MLflow, progress to the run's folder."""

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.training.step_losses import StepLosses
from ramen_ray.orchestration.worker.live_progress import LiveProgress
from ramen_ray.tracking.step_logger import StepLogger

SHOWN_METRICS = ("P@1", "R@10")
SECONDS_BETWEEN_WRITES = 1


class RunLog:
    """Logs figures and progress; only the first worker has one."""

    def __init__(
        self, steps: StepLogger, objective: Objective, total_steps: int, folder: Path
    ) -> None:
        """Log to a run of MLflow.

        Args:
            steps: logger of the run's steps.
            objective: it names the terms.
            total_steps: steps of the whole training.
            folder: the run's.
        """
        self._steps = steps
        self._objective = objective
        self._total_steps = total_steps
        self._folder = folder
        self._message = ""
        self._next_write_at = 0.0

    def log_steps(
        self,
        losses: NDArray[np.float32],
        weights: list[Tensor],
        step: int,
        queries_per_s: float,
    ) -> None:
        """Log the latest steps.

        Args:
            losses: (steps, terms) global losses.
            weights: each step's weights (terms,) if they are adapted, else empty.
            step: the last of the steps (from 1).
            queries_per_s: training speed during these steps.
        """
        latest = StepLosses.from_terms(self._objective, step - len(losses), losses)
        moved = torch.stack(weights).cpu().numpy() if weights else None
        self._steps.log_losses(*latest.figures(moved, queries_per_s), step)

    def show_step(self, step: int) -> None:
        """Show which step is done; at most once a second, so every step may call this."""
        if time.monotonic() >= self._next_write_at:
            self._next_write_at = time.monotonic() + SECONDS_BETWEEN_WRITES
            LiveProgress(step, self._total_steps, self._message).write(self._folder)

    def _show(self, message: str, step: int) -> None:
        self._message, self._next_write_at = message, 0.0
        self.show_step(step)

    def show_epoch(
        self, epoch: str, step: int, losses: Mapping[str, float], metrics: Mapping[str, float]
    ) -> None:
        """Show the results of an epoch, such as ``3/10``."""
        parts = [f"{name} {value:.4f}" for name, value in losses.items()]
        parts += [f"{k} {100 * metrics[k]:.2f}" for k in SHOWN_METRICS if k in metrics]
        self._show(f"epoch {epoch}: {', '.join(parts)}", step)

    def log_validation(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of a validation after ``step`` steps."""
        if metrics:
            self._steps.log_validation(metrics, step)

    def log_figures(self, name: str, figures: Mapping[str, float], step: int) -> None:
        """Log what there is to say of a step's batch, under ``name``."""
        if figures:
            self._steps.log_background(name, figures, step)

    def log_background(self, name: str, figures: Mapping[str, float], step: int) -> None:
        """Log a background task's figures, and show which result is in use from ``step`` on."""
        self._steps.log_background(name, figures, step)
        if "step" in figures:
            parts = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            self._show(f"new {name}: {parts}", step)
