"""Train in workers: one is a task, several are the workers of Ray Train.

For one, Ray Train would start a controller, a group of workers and others beside them. That takes
seconds, and then some of a small machine's processor time while steps run.
"""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.exceptions import (
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.train import (
    FailureConfig,
    LoggingConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
    WorkerGroupError,
)
from ray.train import RunConfig as RayRunConfig
from ray.train.torch import TorchTrainer

from ramen_ray.config import WorkersConfig
from ramen_ray.errors import UserError, first_line_of, is_disk_full
from ramen_ray.orchestration.cluster.resources import (
    MOMENT_S,
    ClusterError,
    check_resources,
    died_too_often,
    has_room,
    kept_handler,
    user_errors,
    worker_share,
    worker_task,
)
from ramen_ray.orchestration.run.task import (
    EndOnFullDisk,
    Result,
    Task,
    train_alone,
    train_loop_per_worker,
)

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
"""How long Ray Train waits for room for its workers; then that counts as one more failure."""
DEATHS = (NodeDiedError, OutOfMemoryError, WorkerCrashedError)
RAY_TRAIN = ".ray_train"
"""In a run's folder: Ray Train's own files, none of which outlives it."""

logger = logging.getLogger(__name__)


def train_in_one_worker(task: Task[Result], workers: WorkersConfig) -> Result:
    """Run ``task`` in one process; if it fails, another one goes on from the last checkpoint.

    Raises:
        UserError, OSError: the process raised it, and so would another one.
        ClusterError: processes have died too often, or there is no room for another one.
    """
    worker, failures = worker_task(train_alone, workers, max_retries=0), 0
    with user_errors():
        while True:
            running = worker.remote(task)
            try:
                result: Result = ray.get(running)
                return result
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


def train_in_workers(
    task: Task[Result],
    workers: WorkersConfig,
    folder: Path,
    callbacks: Sequence[UserCallback] = (),
) -> Result:
    """Run ``task`` in every worker of Ray Train; returns what the first one returns.

    If workers are lost, all are started anew, once there is room for them; they know by themselves
    what they go on from.

    Args:
        task: what they do.
        workers: how many there are, and what each holds.
        folder: of the run; all machines can reach it.
        callbacks: of Ray Train, called at every report.

    Raises:
        UserError: the first worker returned it; see
            :func:`~ramen_ray.orchestration.run.task.train_loop_per_worker`.
        ClusterError: workers have died too often, or Ray Train's controller has; or a lost machine
            was not replaced.
        KeyboardInterrupt: Ctrl-C, on which Ray Train would exit by itself, with another code.
    """
    os.environ.setdefault(START_TIMEOUT, str(workers.startup_timeout_s))
    shutil.rmtree(folder / RAY_TRAIN, ignore_errors=True)  # of a driver that was killed
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"task": task},
        scaling_config=ScalingConfig(
            num_workers=workers.num_workers,
            use_gpu=workers.use_gpu,
            resources_per_worker=worker_share(workers),
        ),
        run_config=RayRunConfig(
            name=RAY_TRAIN,
            callbacks=[EndOnFullDisk(), *callbacks],
            logging_config=LoggingConfig(log_level="ERROR"),
            storage_path=str(folder),
            failure_config=FailureConfig(
                max_failures=workers.max_failures, controller_failure_limit=workers.max_failures
            ),
        ),
    )
    try:
        with kept_handler(signal.SIGINT), user_errors():
            returned: Result | UserError = trainer.fit().return_value
    except TrainingFailedError as error:
        if (known := _known_reason(error, workers)) is not None:
            raise known from error
        raise
    except SystemExit:
        if threading.current_thread() is not threading.main_thread():
            raise
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(folder / RAY_TRAIN, ignore_errors=True)
    if isinstance(returned, UserError):
        raise returned
    return returned


def _known_reason(error: TrainingFailedError, workers: WorkersConfig) -> ClusterError | None:
    """Say in one line why Ray Train gave up, if not for a fault of the code or a full disk."""
    if isinstance(error, WorkerGroupError):
        for failure in error.worker_failures.values():
            # set by Ray Train where the process, and not its code, has ended
            if isinstance(getattr(failure, "health_check_failure", None), RayError):
                return died_too_often(workers.max_failures, failure)
        return None
    needed = [worker_share(workers)] * workers.num_workers
    if is_disk_full(getattr(error, "controller_failure", error)) or has_room(needed, MOMENT_S):
        return None
    return ClusterError(
        f"workers were lost, and the cluster has had no room for all {workers.num_workers} since; "
        f"add machines, and run the same command again to go on (waited "
        f"{workers.max_failures + 1} times workers.startup_timeout_s)"
    )
