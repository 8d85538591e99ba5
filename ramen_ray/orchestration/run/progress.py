"""What a run says while it trains: its first worker logs it, the driver shows how far it is."""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from torch import Tensor

from ramen_ray.data.store.made_folder import read_json, write_json
from ramen_ray.long_work import Pace, in_background
from ramen_ray.method.metrics.ranking import HEADLINES
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.training.step import StepLosses
from ramen_ray.tracking.runs import Run
from ramen_ray.tracking.step_logger import StepLogger

PROGRESS_FILE = "progress.json"
SECONDS_BETWEEN_WRITES = 1
SECONDS_BETWEEN_LOOKS = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveProgress:
    """How far a run has come: the last step that is done (from 1), and the latest news."""

    step: int
    total_steps: int
    message: str = ""

    def write(self, folder: Path) -> None:
        """Write the progress into the run's folder."""
        write_json(folder / PROGRESS_FILE, asdict(self))


def read_progress(folder: Path) -> LiveProgress | None:
    """Read how far the run in ``folder`` has come; None before its first step."""
    try:
        return LiveProgress(**read_json(folder / PROGRESS_FILE))
    except FileNotFoundError:
        return None


class RunLog:
    """Logs figures and progress; only the first worker has one."""

    def __init__(self, run: Run, folder: Path, objective: Objective, total_steps: int) -> None:
        self.steps = StepLogger(run, folder)
        self._objective = objective  # names the terms
        self._total_steps = total_steps
        self._folder = folder
        self._message = ""
        self._next_write_at = 0.0

    def log_steps(
        self, losses: NDArray[np.float32], weights: list[Tensor], step: int, queries_per_s: float
    ) -> None:
        """Log global ``losses`` (steps, terms) up to ``step`` (from 1), and weights that moved."""
        latest = StepLosses.from_terms(self._objective, step - len(losses), losses)
        moved = torch.stack(weights).cpu().numpy() if weights else None
        self.steps.log_losses(*latest.figures(moved, queries_per_s), step)

    def show_step(self, step: int) -> None:
        """Show which step is done; at most once a second, so every step may call this."""
        if time.monotonic() >= self._next_write_at:
            self._next_write_at = time.monotonic() + SECONDS_BETWEEN_WRITES
            LiveProgress(step, self._total_steps, self._message).write(self._folder)

    def show(self, message: str, step: int) -> None:
        """Show ``message`` at once, and until there is another."""
        self._message = message
        self._next_write_at = 0.0
        self.show_step(step)

    def log_epoch(
        self, epoch: str, step: int, losses: Mapping[str, float], metrics: Mapping[str, float]
    ) -> None:
        """Log the validation of an epoch, such as ``3/10``, and show it with the losses."""
        # metrics first, as terminals cut lines
        parts = [f"{k} {100 * metrics[k]:.2f}" for k in HEADLINES if k in metrics]
        parts += [f"{name} {value:.4f}" for name, value in losses.items()]
        self.show(f"epoch {epoch}: {', '.join(parts)}", step)
        self.steps.log_figures("validation", metrics, step)

    def log_background(self, name: str, figures: Mapping[str, float], step: int) -> None:
        """Log a background task's figures, and show which result is in use from ``step`` on."""
        self.steps.log_figures(name, figures, step)
        if "step" in figures:
            parts = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            self.show(f"new {name}: {parts}", step)


@contextmanager
def shown_progress(folder: Path) -> Iterator[None]:
    """Show the progress of the run in ``folder`` until the ``with`` block ends."""
    (folder / PROGRESS_FILE).unlink(missing_ok=True)  # of an earlier attempt
    # One line that changes, or a line now and again.
    show = _show_bar if sys.stdout.isatty() else _log_lines
    with in_background(lambda ended: show(folder, ended)):
        yield


def _show_bar(folder: Path, ended: Event) -> None:
    rest = TextColumn("{task.fields[rest]}", table_column=Column(no_wrap=True, ratio=1))
    with Progress(TextColumn("{task.description}"), BarColumn(20), rest, expand=True) as bar:
        task = bar.add_task("starting workers", total=None, rest="")
        for now, left in _updates(folder, ended):
            bar.update(
                task,
                description="training" if now.step < now.total_steps else "evaluating",
                completed=now.step,
                total=now.total_steps,
                rest=_line(now, left),
            )


def _log_lines(folder: Path, ended: Event) -> None:
    pace = Pace()
    for now, left in _updates(folder, ended):
        is_last = ended.is_set()
        if pace.is_due() or is_last:
            is_trained = now.step == now.total_steps and not is_last
            logger.info("evaluating" if is_trained else _line(now, left))


def _updates(folder: Path, ended: Event) -> Iterator[tuple[LiveProgress, str]]:
    """Yield the progress in ``folder`` and the time left until ``ended``, and once more then."""
    pace = Pace()
    is_last = False
    while not is_last:
        is_last = ended.wait(SECONDS_BETWEEN_LOOKS)
        now = read_progress(folder)
        if now is not None:
            seconds = pace.seconds_left(now.step, now.total_steps)
            yield now, f"{timedelta(seconds=round(seconds))} left" if seconds else ""


def _line(now: LiveProgress, left: str) -> str:
    return "  ".join(filter(None, (f"step {now.step}/{now.total_steps}", left, now.message)))
