"""Log the figures of a run's steps, each once, and keep them while the store does not answer."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramen_ray.tracking.addresses import TrackingError
from ramen_ray.tracking.runs import (
    Point,
    Run,
    cannot_use,
    few_retries,
    mlflow_error,
    mlflow_metrics,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

LAST_STEP = "ramen_ray.last_{}_step"
MAX_METRICS_PER_BATCH = 1000
UNSENT_FILE = "unsent.jsonl"
MAX_UNSENT_BYTES = 1 << 26
SECONDS_BETWEEN_TRIES = 30

logger = logging.getLogger(__name__)


class _Figures(NamedTuple):
    """Figures up to ``step``; the run's ``tag`` says up to which step the store has them."""

    tag: str
    step: int
    time: float
    points: list[Point]


class StepLogger:
    """Logs losses, validations and background results, each once even if computed twice.

    A resumed run repeats the steps after its checkpoint; the store keeps what it has of them. While
    the store does not answer, figures are kept in a file in the run's folder, and sent before newer
    ones, by this process or by one that resumes the run.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        self._run = run
        self._unsent = folder / UNSENT_FILE
        self._next_try = 0.0

    @cached_property
    def _client(self) -> "MlflowClient":
        return self._run.client

    @cached_property
    def _last(self) -> dict[str, int]:
        """The last step that the store has, by tag."""
        tags = self._client.get_run(self._run.id).data.tags
        prefix = LAST_STEP.partition("{")[0]
        steps = {tag: int(step) for tag, step in tags.items() if tag.startswith(prefix)}
        return defaultdict(int, steps)

    def log_losses(
        self, names: list[str], values: NDArray[Any], is_known: NDArray[np.bool_], last_step: int
    ) -> None:
        """Log the ``values`` (steps, names) that are known, up to ``last_step`` (from 1)."""
        first = last_step - len(values) + 1
        points = [
            (names[column], float(values[row, column]), first + row)
            for row, column in np.argwhere(is_known).tolist()
        ]
        self._log(points, LAST_STEP.format("losses"), last_step)

    def log_figures(self, topic: str, figures: Mapping[str, float], step: int) -> None:
        """Log figures after ``step`` steps under a ``topic``, such as ``validation``."""
        points = [(f"{topic}/{key}", float(value), step) for key, value in figures.items()]
        self._log(points, LAST_STEP.format(topic), step)

    def send_unsent(self) -> None:
        """Send what has been kept; a TrackingError if the store does not answer."""
        try:
            with few_retries():
                self._send([])
        except (mlflow_error(), OSError) as error:
            again = "run the same command again when it answers"
            raise TrackingError(f"{cannot_use(self._run.uri, error)}; {again}") from None

    def _log(self, points: list[Point], tag: str, step: int) -> None:
        if not points:
            return
        figures = _Figures(tag, step, time.time(), points)
        if time.monotonic() < self._next_try:
            self._keep(figures)
            return
        try:
            with few_retries():
                self._send([figures])
        except (mlflow_error(), OSError) as error:
            if not self._next_try:
                what = f"figures are kept in {self._unsent} until it answers"
                logger.warning("warning: %s; %s", cannot_use(self._run.uri, error), what)
            self._next_try = time.monotonic() + SECONDS_BETWEEN_TRIES
            self._keep(figures)

    def _keep(self, figures: _Figures) -> None:
        """Write figures to the file, unless the server has been gone so long that it is too big."""
        with self._unsent.open("a", encoding="utf-8") as file:
            if file.tell() < MAX_UNSENT_BYTES:
                file.write(json.dumps(figures) + "\n")

    def _kept(self) -> Iterator[_Figures]:
        if not self._unsent.exists():
            return
        for line in self._unsent.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the last line of a killed process may be cut short
                yield _Figures(*json.loads(line))

    def _send(self, figures: list[_Figures]) -> None:
        for batch in [*self._kept(), *figures]:
            fresh = [point for point in batch.points if point[2] > self._last[batch.tag]]
            metrics = mlflow_metrics(fresh, batch.time)
            for start in range(0, len(metrics), MAX_METRICS_PER_BATCH):
                chunk = metrics[start : start + MAX_METRICS_PER_BATCH]
                self._client.log_batch(self._run.id, metrics=chunk)
            if fresh:
                self._client.set_tag(self._run.id, batch.tag, str(batch.step))
                self._last[batch.tag] = batch.step
        if self._next_try:
            logger.warning("the MLflow store answers again; the figures that were kept are sent")
            self._next_try = 0.0
        self._unsent.unlink(missing_ok=True)
