"""Run a function in the workers of Ray Train."""

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, ScalingConfig, UserCallback
from ray.train import RunConfig as RayRunConfig
from ray.train.torch import TorchTrainer

from ramen_ray.config import WorkersConfig
from ramen_ray.errors import UserError
from ramen_ray.orchestration.cluster.resources import kept_handler
from ramen_ray.orchestration.training.run_directory import RunDirectory


def run_in_workers(
    loop: Callable[[dict[str, Any]], Any],
    task: Any,
    workers: WorkersConfig,
    directory: RunDirectory,
    checkpoints: CheckpointConfig,
    callbacks: Sequence[UserCallback] = (),
) -> Any:
    """Call ``loop({"task": task})`` in every worker; returns what the first one returns.

    Lost workers resume from the last checkpoint in ``directory``.

    Raises:
        UserError: the first worker returned it; see
            :func:`~ramen_ray.orchestration.training.entry.train_loop_per_worker`.
        KeyboardInterrupt: Ctrl-C, on which Ray Train would exit by itself, with another code.
    """
    gpus = {"GPU": workers.gpus_per_worker} if workers.use_gpu else {}
    trainer = TorchTrainer(
        loop,
        train_loop_config={"task": task},
        scaling_config=ScalingConfig(
            num_workers=workers.num_workers,
            use_gpu=workers.use_gpu,
            resources_per_worker={"CPU": workers.cpus_per_worker, **gpus},
        ),
        run_config=RayRunConfig(
            name=directory.name,
            callbacks=list(callbacks),
            logging_config=LoggingConfig(log_level="WARNING"),
            storage_path=str(directory.path.parent),
            failure_config=FailureConfig(
                max_failures=workers.max_failures, controller_failure_limit=workers.max_failures
            ),
            checkpoint_config=checkpoints,
        ),
    )
    try:
        with kept_handler(signal.SIGINT):
            result = trainer.fit().return_value
    except SystemExit:
        if threading.current_thread() is not threading.main_thread():
            raise
        raise KeyboardInterrupt from None
    if isinstance(result, UserError):
        raise result
    return result
