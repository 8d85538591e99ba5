"""How workers are entered.

Ray Train's controller unpickles this too, so it imports little: a worker's libraries take seconds.
"""

import logging
from typing import Any

from ramen_ray.orchestration.training.task import WorkerResult, WorkerTask


def train_loop_per_worker(settings: dict[str, Any]) -> WorkerResult:
    """Run the ``task`` of ``settings``, a :class:`WorkerTask`."""
    task: WorkerTask = settings["task"]
    logging.getLogger().setLevel(logging.WARNING)  # else Ray Train logs every report
    from ramen_ray.orchestration.training.worker import run_worker

    return run_worker(task)
