"""How workers are entered.

Ray Train's controller unpickles this too, so it imports little: a worker's libraries take seconds.
"""

import logging
from dataclasses import dataclass
from typing import Any

from ramen_ray.config import RunConfig


@dataclass(frozen=True)
class WorkerTask:
    """What the driver hands to every worker; plain values only."""

    config: RunConfig
    prepared: str
    edges: str
    run_directory: str
    tracking_uri: str
    mlflow_run_id: str
    is_part: bool = False
    """Whether the run is one of many, whose workers tell only of trouble."""


def train_loop_per_worker(settings: dict[str, Any]) -> dict[str, Any]:
    """Run the ``task`` of ``settings``, a :class:`WorkerTask`, and return its outcome."""
    task: WorkerTask = settings["task"]
    logging.getLogger().setLevel(logging.WARNING)  # Ray Train tells every report otherwise
    logging.getLogger("ramen_ray").setLevel(logging.WARNING if task.is_part else logging.INFO)
    from ramen_ray.orchestration.training.worker import run_worker

    return run_worker(task)
