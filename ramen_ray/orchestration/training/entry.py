"""The function that Ray Train calls in each worker.

Ray Train's controller unpickles it too, so this module imports little: a worker's libraries take
seconds to import.
"""

import logging
from typing import Any

from ramen_ray.orchestration.training.task import WorkerResult, WorkerTask


def train_loop_per_worker(settings: dict[str, Any]) -> WorkerResult:
    """Run the ``task`` of ``settings``, a :class:`WorkerTask`."""
    task: WorkerTask = settings["task"]
    logging.getLogger().setLevel(logging.WARNING)  # otherwise Ray Train logs every report
    from ramen_ray.orchestration.training.worker import run_worker

    return run_worker(task)
