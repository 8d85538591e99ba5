"""Train in worker processes: one Ray task, or several workers of Ray Train.

For one worker, the processes of Ray Train would take seconds to start, and then processor time.
"""

import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
import ray.train
import ray.train.torch
import torch
from ray.exceptions import (
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.train import (
    ControllerError,
    FailureConfig,
    LoggingConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
    WorkerGroupError,
)
from ray.train import RunConfig as RayRunConfig
from ray.train.torch import TorchTrainer
from torch import nn

from ramen_ray.config import ConfigError, WorkersConfig
from ramen_ray.errors import DatasetError, UserError, first_line_of, is_disk_full
from ramen_ray.orchestration.cluster.joining import ClusterError, kept_handler
from ramen_ray.orchestration.cluster.resources import (
    MOMENT_S,
    as_task,
    check_resources,
    died_too_often,
    has_room,
    task_share,
    user_errors,
    worker_share,
)
from ramen_ray.orchestration.run.progress import shown_progress

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
"""How long Ray Train waits for room for its workers; then that counts as one more failure."""
DEATHS = (NodeDiedError, OutOfMemoryError, WorkerCrashedError)
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables for torch's allocator of GPU memory; the second is its earlier name."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the network interfaces by which several workers find each other."""
NOTICED_WITHIN_S = 20.0  # by Ray, that a machine is lost
SECONDS_BETWEEN_RESIZES = 60.0  # each goes on from the last checkpoint
RAY_TRAIN = ".ray_train"  # in a run's folder: Ray Train's own files, none of which outlives it
VALIDATION = "validation/"  # begins the names of validation's metrics in reports
OUT_OF_MEMORY = re.compile(r"out of memory in step \d+: .*")  # what StepMemoryError says
OnReport = Callable[[dict[str, Any]], None]
"""Called with the metrics of each checkpoint, once that outlives the process."""

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class TooManyTexts(RuntimeError):
    """A step does not fit into memory; the next attempt encodes fewer of its texts at once."""


@dataclass(frozen=True)
class WorkerContext:
    """What a worker's process offers: a worker of Ray Train, or the only one of a run."""

    device: torch.device
    is_first_on_machine: bool = True  # of its workers; it copies files there
    # returns what steps call: a model, or its wrapper for several workers
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    report: OnReport = lambda metrics: None
    # whether a machine with a worker will be taken away; all workers ask together
    machine_leaves: Callable[[], bool] = lambda: False


def prepare_process(seed: int, workers: WorkersConfig) -> None:
    """Set this process's random numbers, threads and precision; it may have had another run."""
    torch.manual_seed(seed)
    given = os.environ.get("OMP_NUM_THREADS", "")  # the user's; Ray sets it to the CPUs else
    torch.set_num_threads(int(given) if given.isdecimal() else workers.cpus_per_worker)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it
    if not os.environ.keys() & set(ALLOCATOR):  # read when a GPU's memory is first asked for
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"  # as no two steps have one size


Train = Callable[[WorkerContext], Result]
"""What the driver sends to every worker, to train to the end there; it has plain values only."""


def only_worker(on_report: OnReport = lambda metrics: None) -> WorkerContext:
    """Describe this process, which has the GPU that Ray gives it, or else the CPU."""
    device = torch.device("cuda", 0) if ray.get_gpu_ids() else torch.device("cpu")
    return WorkerContext(device, report=on_report)


def train_in_all_workers(train: Train[Result], workers: WorkersConfig, folder: Path) -> Result:
    """Train in all workers, the only one without Ray Train; return what the first one returns.

    How far they are is shown, from the run's ``folder``.
    """
    with shown_progress(folder):
        if workers.num_workers == 1:
            return train_in_one_worker(train, workers)
        return train_in_workers(train, workers, folder)


def train_in_one_worker(train: Train[Result], workers: WorkersConfig) -> Result:
    """Train in one process; if it fails, another one goes on from the last checkpoint.

    Raises:
        UserError, OSError: the process raised it, and so would another one.
        ClusterError: processes have died too often, or there is no room for another one.
    """
    worker = as_task(train_alone, **task_share(workers), max_retries=0)
    failures = 0
    with user_errors():
        while True:
            running = worker.remote(train)
            try:
                result: Result = ray.get(running)
                return result
            except RayTaskError as error:
                failure = error.cause
                if isinstance(failure, TooManyTexts):
                    continue
                recurs = isinstance(failure, UserError) or is_disk_full(failure)
                if failures == workers.max_failures or recurs:
                    raise
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


def train_alone(train: Train[Result]) -> Result:
    """Train in the only worker, whose process Ray names after this function."""
    return train(only_worker())


def train_in_workers(
    train: Train[Result],
    workers: WorkersConfig,
    folder: Path,
    callbacks: Sequence[UserCallback] = (),
) -> Result:
    """Train in every worker of Ray Train; returns what the first one returns.

    If workers are lost, all are started anew, once there is room for them. A machine that is taken
    away after a notice counts as no failure. All machines can reach the run's ``folder``.

    Raises:
        UserError: the first worker returned it (see :func:`train_loop_per_worker`), or a GPU's
            memory has not sufficed for the same step twice.
        ClusterError: workers have died too often, or Ray Train's controller has; or a lost machine
            was not replaced.
        KeyboardInterrupt: Ctrl-C.
    """
    is_fixed = workers.fewest == workers.num_workers
    # Ray Train asks for a lost machine once more, until it knows that the machine is gone.
    patience = workers.startup_timeout_s if is_fixed else NOTICED_WITHIN_S
    os.environ.setdefault(START_TIMEOUT, str(patience))
    shutil.rmtree(folder / RAY_TRAIN, ignore_errors=True)  # of a driver that was killed
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"train": train},
        scaling_config=ScalingConfig(
            num_workers=(
                workers.num_workers if is_fixed else (workers.fewest, workers.num_workers)
            ),
            elastic_resize_monitor_interval_s=SECONDS_BETWEEN_RESIZES,
            use_gpu=workers.use_gpu,
            resources_per_worker=worker_share(workers),
        ),
        run_config=RayRunConfig(
            name=RAY_TRAIN,
            callbacks=[EndIfItRecurs(), *callbacks],
            logging_config=LoggingConfig(log_level="ERROR"),
            storage_path=str(folder),
            worker_runtime_env={  # workers have the variables of Ray's processes, not the driver's
                "env_vars": {name: os.environ[name] for name in INTERFACES if name in os.environ}
            },
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
    except SystemExit:  # Ray Train's on Ctrl-C; in a thread it is Tune's, which ends a trial
        if threading.current_thread() is not threading.main_thread():
            raise
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(folder / RAY_TRAIN, ignore_errors=True)
    if isinstance(returned, UserError):
        raise returned
    return returned


def train_loop_per_worker(settings: dict[str, Any]) -> Any:
    """Run a worker of Ray Train; an error that all would find again is returned."""
    logging.getLogger().setLevel(logging.WARNING)  # otherwise Ray Train logs every report
    from ramen_ray.data.store.made_folder import DamagedError
    from ramen_ray.method.training.step import DivergedError
    from ramen_ray.orchestration.background.task import LateError
    from ramen_ray.orchestration.run.directory import RunError

    context = WorkerContext(
        ray.train.torch.get_device(),
        ray.train.get_context().get_local_rank() == 0,
        ray.train.torch.prepare_model,
        ray.train.report,  # to the callbacks
        lambda: ray.train.get_preemption_info() is not None,
    )
    try:
        return settings["train"](context)
    except (
        ConfigError,
        DatasetError,
        DivergedError,
        DamagedError,
        LateError,
        RunError,
    ) as error:
        return error  # Ray Train would start the workers anew if it was raised


def _known_reason(error: TrainingFailedError, workers: WorkersConfig) -> UserError | None:
    """Say in one line why Ray Train gave up, if not for a fault of the code or a full disk."""
    end = getattr(error, "controller_failure", error)  # what EndIfItRecurs has raised, for one
    if isinstance(end, UserError):
        return end
    if isinstance(error, WorkerGroupError):
        for failure in error.worker_failures.values():
            # set by Ray Train where the process, and not its code, has ended
            if isinstance(getattr(failure, "health_check_failure", None), RayError):
                return died_too_often(workers.max_failures, failure)
        return None
    # The controller also ends where it waited for room in vain: is there any now?
    needed = [worker_share(workers)] * workers.fewest
    if is_disk_full(end) or has_room(needed, MOMENT_S):
        return None
    return ClusterError(
        f"workers were lost, and the cluster has had no room for {workers.fewest} since; "
        f"add machines, and run the same command again to go on (waited "
        f"{workers.max_failures + 1} times workers.startup_timeout_s)"
    )


class EndIfItRecurs(UserCallback):
    """Ends a training that fails as it would again: on a full disk, or for the memory of a step."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """End the training, as Ray Train does not retry errors of its controller."""
        for error in worker_exceptions.values():
            if is_disk_full(error):
                raise ControllerError(error)
            if (said := OUT_OF_MEMORY.search(str(error))) is not None:
                raise ControllerError(UserError(said[0]))
