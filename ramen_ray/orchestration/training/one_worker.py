"""Train with one worker: a task, which is all that Ray needs for it.

Ray Train would start a controller, a group of workers and others beside them. That takes seconds,
and then some of a small machine's processor time while steps run.
"""

import logging

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

from ramen_ray.errors import UserError, first_line_of
from ramen_ray.full_disk import is_disk_full
from ramen_ray.orchestration.cluster.resources import (
    check_resources,
    died_too_often,
    user_errors,
    worker_task,
)
from ramen_ray.orchestration.runs.task import WorkerResult, WorkerTask
from ramen_ray.orchestration.worker.entry import train_alone

logger = logging.getLogger(__name__)

DEATHS = (NodeDiedError, OutOfMemoryError, WorkerCrashedError)


def train_in_one_worker(task: WorkerTask) -> WorkerResult:
    """Train in one process; if it fails, another one goes on from the last checkpoint.

    Raises:
        UserError, OSError: the process raised it, and so would another one.
        ClusterError: processes have died too often, or there is no room for another one.
    """
    workers = task.config.workers
    worker, failures = worker_task(train_alone, workers, max_retries=0), 0
    with user_errors():
        while True:
            running = worker.remote(task)
            try:
                return ray.get(running)
            except RayTaskError as error:
                if failures == workers.max_failures or _recurs(error.cause):
                    raise
                failure = error.cause
            except DEATHS as error:
                if failures == workers.max_failures:
                    raise died_too_often(workers.max_failures, error) from error
                failure = error
            except BaseException:  # Ctrl-C
                ray.cancel(running, force=True)
                raise
            failures += 1
            logger.warning("the worker has failed, another one goes on: %s", first_line_of(failure))
            check_resources(workers)


def _recurs(error: Exception) -> bool:
    return isinstance(error, UserError) or is_disk_full(error)
