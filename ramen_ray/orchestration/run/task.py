"""What Ray calls in workers, what these receive, and what they return.

The driver and Ray Train's controller import this too, so it imports little: a worker's libraries
take seconds.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ray.train import ControllerError, UserCallback

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig
from ramen_ray.errors import is_disk_full
from ramen_ray.tracking.runs import Run

if TYPE_CHECKING:
    from ramen_ray.orchestration.run.training import Process

VALIDATION = "validation/"
"""Begins the names of validation's metrics in reports."""
OnReport = Callable[[dict[str, Any]], None]
"""Called with the metrics of each checkpoint, once that outlives the process."""


Result = TypeVar("Result", covariant=True)


class Task(Protocol[Result]):
    """What the driver sends to every worker; plain values only."""

    def train(self, process: "Process") -> Result:
        """Train to the end in a worker's process; the driver gets what the first one returns."""


@dataclass(frozen=True)
class WorkerTask:
    """The task of training a run.

    Attributes:
        config: what to train.
        prepared: folder of the prepared dataset.
        edges: folder of the graphs to train on.
        run_directory: folder of the run.
        run: the run in MLflow; it can be unpickled without importing MLflow.
        made_from: what the run is made from, as the driver has found it.
    """

    config: RunConfig
    prepared: str
    edges: str
    run_directory: str
    run: Run
    made_from: dict[str, str]

    def train(self, process: "Process") -> "WorkerResult":
        """Train to the end in a worker's process, and evaluate."""
        from ramen_ray.orchestration.run.loop import run_worker

        return run_worker(self, process)


@dataclass(frozen=True)
class FinalEvaluation:
    """Results of the best model of a run.

    Attributes:
        metrics: by row (``untrained``, ``trained``), then split, then metric name. With
            classifiers there are also ``encoder``, ``classifier`` and ``both``.
        best_checkpoint: the best model's folder.
        best_step: the step after which it was written.
        part: which part of its vectors answers best on the validation split.
    """

    metrics: dict[str, dict[str, dict[str, float]]]
    best_checkpoint: str
    best_step: int
    part: Part


@dataclass(frozen=True)
class WorkerResult:
    """What a worker returns; the driver uses that of the first.

    Attributes:
        evaluation: the same on every worker.
        trained_seconds: time spent in steps, over all attempts.
        waited_seconds: time spent waiting for background tasks.
        entered_at: when the worker began, in seconds since 1970.
        first_step_at: when its first step was done, likewise.
    """

    evaluation: FinalEvaluation
    trained_seconds: float
    waited_seconds: float
    entered_at: float
    first_step_at: float


def train_alone(task: Task[Result]) -> Result:
    """Run a task in the only worker."""
    from ramen_ray.orchestration.run.training import only_worker

    return task.train(only_worker())


def train_loop_per_worker(settings: dict[str, Any]) -> Any:
    """Run the ``task`` of ``settings`` in a worker of Ray Train.

    An error that all workers find at once, and would find again, is returned: Ray Train would
    start them anew if it was raised.
    """
    logging.getLogger().setLevel(logging.WARNING)  # otherwise Ray Train logs every report
    from ramen_ray.data.store.checksums import DamagedError
    from ramen_ray.method.training.step_losses import DivergedError
    from ramen_ray.orchestration.run.directory import RunError
    from ramen_ray.orchestration.run.training import ray_train_worker

    try:
        return settings["task"].train(ray_train_worker())
    except (DivergedError, DamagedError, RunError) as error:
        return error


class EndOnFullDisk(UserCallback):
    """Ends a training whose disk is full: workers that are started anew would find it full."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """End the training, as Ray Train does not retry errors of its controller."""
        for error in worker_exceptions.values():
            if is_disk_full(error):
                raise ControllerError(error)
