"""What workers receive and return; imports little, since Ray's controller imports it too."""

from dataclasses import dataclass
from typing import Any

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig
from ramen_ray.tracking.runs import Run


@dataclass(frozen=True)
class WorkerTask:
    """What the driver sends to every worker; plain values only.

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


@dataclass(frozen=True)
class FinalEvaluation:
    """Results of the best model of a run.

    Attributes:
        metrics: by row (``untrained``, ``trained``), then split, then metric name. With
            classifiers there are also ``encoder``, ``classifier`` and ``both``.
        sample: test ``queries`` (n,), and their best ``ads`` and ``scores`` (n, k), as lists.
        best_checkpoint: the best model's folder.
        best_step: the step after which it was written.
        part: which part of its vectors answers best on the validation split.
    """

    metrics: dict[str, dict[str, dict[str, float]]]
    sample: dict[str, Any]
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
