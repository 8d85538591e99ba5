"""Run a function in the workers of Ray Train."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, ScalingConfig, UserCallback
from ray.train import RunConfig as RayRunConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from ramen_ray.config import WorkersConfig
from ramen_ray.errors import UserError
from ramen_ray.orchestration.cluster.resources import (
    ClusterError,
    died_too_often,
    kept_handler,
    user_errors,
    worker_share,
)
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.task import EndOnFullDisk

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
"""How long Ray Train waits for room for its workers; then that counts as one more failure."""


def run_in_workers(
    loop: Callable[[dict[str, Any]], Any],
    task: Any,
    workers: WorkersConfig,
    directory: RunDirectory,
    checkpoints: CheckpointConfig,
    callbacks: Sequence[UserCallback] = (),
) -> Any:
    """Call ``loop({"task": task})`` in every worker; returns what the first one returns.

    Lost workers resume from the last checkpoint in ``directory``, once there is room for them.

    Raises:
        UserError: the first worker returned it; see
            :func:`~ramen_ray.orchestration.run.task.train_loop_per_worker`.
        ClusterError: workers have died too often, or Ray Train's controller has; or a lost machine
            was not replaced.
        KeyboardInterrupt: Ctrl-C, on which Ray Train would exit by itself, with another code.
    """
    os.environ.setdefault(START_TIMEOUT, str(workers.startup_timeout_s))
    trainer = TorchTrainer(
        loop,
        train_loop_config={"task": task},
        scaling_config=ScalingConfig(
            num_workers=workers.num_workers,
            use_gpu=workers.use_gpu,
            resources_per_worker=worker_share(workers),
        ),
        run_config=RayRunConfig(
            name=directory.name,
            callbacks=[EndOnFullDisk(), *callbacks],
            logging_config=LoggingConfig(log_level="ERROR"),
            storage_path=str(directory.path.parent),
            failure_config=FailureConfig(
                max_failures=workers.max_failures, controller_failure_limit=workers.max_failures
            ),
            checkpoint_config=checkpoints,
        ),
    )
    try:
        with kept_handler(signal.SIGINT), user_errors():
            result = trainer.fit().return_value
    except WorkerGroupError as error:
        _raise_deaths(error, workers.max_failures)
        raise
    except ControllerError as error:
        if isinstance(error.controller_failure, WorkerGroupStartupTimeoutError):
            raise ClusterError(
                f"workers were lost, and the cluster has had no room for all {workers.num_workers} "
                f"since; add machines, and run the same command again to go on (waited "
                f"{workers.max_failures + 1} times workers.startup_timeout_s)"
            ) from error
        raise
    except SystemExit:
        if threading.current_thread() is not threading.main_thread():
            raise
        raise KeyboardInterrupt from None
    if isinstance(result, UserError):
        raise result
    return result


def _raise_deaths(error: WorkerGroupError, max_failures: int) -> None:
    """Say in one line that workers have died too often, if that is why Ray Train gave up."""
    for failure in error.worker_failures.values():
        if isinstance(failure, WorkerHealthCheckFailedError):
            raise died_too_often(max_failures, failure) from error
