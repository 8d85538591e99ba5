"""What the driver hands to workers, and what they return; light, for Ray's controller loads it."""

from dataclasses import dataclass
from typing import Any

from ramen_ray.config import RunConfig
from ramen_ray.tracking.runs import Run


@dataclass(frozen=True)
class WorkerTask:
    """What the driver hands to every worker; plain values only.

    Attributes:
        config: what to train.
        prepared: folder of the prepared dataset.
        edges: folder of the graphs to train on.
        run_directory: folder of the run.
        run: the run in MLflow, which it takes no MLflow to unpickle.
    """

    config: RunConfig
    prepared: str
    edges: str
    run_directory: str
    run: Run


@dataclass(frozen=True)
class FinalEvaluation:
    """What the best model of a run reaches.

    Attributes:
        metrics: by row (``untrained``, ``trained``), then split, then metric name.
        sample: test ``queries`` (n,), and their best ``ads`` and ``scores`` (n, k), as lists.
        best_checkpoint: the folder of the model.
        best_step: the step after which it was written.
    """

    metrics: dict[str, dict[str, dict[str, float]]]
    sample: dict[str, Any]
    best_checkpoint: str
    best_step: int


@dataclass(frozen=True)
class WorkerResult:
    """What a worker returns; the first one's counts.

    Attributes:
        evaluation: the same on every worker.
        trained_seconds: spent in steps, over all attempts.
        waited_seconds: spent waiting for background tasks.
        entered_at: when this process was entered, in seconds since 1970.
        first_step_at: when it had made its first step.
    """

    evaluation: FinalEvaluation
    trained_seconds: float
    waited_seconds: float
    entered_at: float
    first_step_at: float
