"""The functions that Ray calls in workers: one of several, or the only one.

The driver and Ray Train's controller know them too, so this module imports little: a worker's
libraries take seconds to import.
"""

import logging
from pathlib import Path
from typing import Any

from ramen_ray.errors import UserError
from ramen_ray.orchestration.runs.task import WorkerResult, WorkerTask


def train_loop_per_worker(settings: dict[str, Any]) -> WorkerResult | UserError:
    """Run the ``task`` of ``settings``, a :class:`WorkerTask`.

    An error that all workers find at once, and would find again, is returned: Ray Train would
    start them anew if it was raised.
    """
    task: WorkerTask = settings["task"]
    logging.getLogger().setLevel(logging.WARNING)  # otherwise Ray Train logs every report
    from ramen_ray.data.store.checksums import DamagedError
    from ramen_ray.method.training.step_losses import DivergedError
    from ramen_ray.orchestration.runs.run_directory import RunError
    from ramen_ray.orchestration.worker.host import RayTrain
    from ramen_ray.orchestration.worker.loop import run_worker

    try:
        return run_worker(task, RayTrain())
    except (DivergedError, DamagedError, RunError) as error:
        return error


def train_alone(task: WorkerTask) -> WorkerResult:
    """Run a task in the only worker."""
    from ramen_ray.orchestration.worker.host import OwnProcess
    from ramen_ray.orchestration.worker.loop import run_worker

    return run_worker(task, OwnProcess(Path(task.run_directory)))
