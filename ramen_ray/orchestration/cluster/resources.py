"""Find room on Ray's machines, run tasks there, and say why there was none or why they ended."""

import hashlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    ActorDiedError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from ramen_ray.config import WorkersConfig
from ramen_ray.errors import UserError, first_line_of
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.cluster.joining import ClusterError, is_lost, start_ray

GPU_SHARE = 0.25
MOMENT_S = 2  # enough for Ray to answer if there is room
PATIENCE_S = 600  # for others to give back what they hold, or for machines that start
DECIDES_WITHIN_S = 30  # on a busy machine, whether there is room for a placement group
UNDECIDED = ("QUEUED", "SCHEDULING_STARTED")
RAY_DATA_ADVICE = "\nFailed to apply UDF transform after"  # on retries; added to all errors

logger = logging.getLogger(__name__)

Needs = dict[str, float]  # what Ray reserves for a process, by its names; memory in bytes
Option = TypeVar("Option")


def died_too_often(max_failures: int, failure: Exception) -> ClusterError:
    """Return the error of workers that have died once more than they may."""
    return ClusterError(
        f"workers have died {max_failures + 1} times, once more than workers.max_failures allows; "
        f"see whether their machines have enough memory, and run the same command again to go on "
        f"({first_line_of(failure)})"
    )


def free_share(num_cpus: int = 1) -> dict[str, float]:
    """Return the free resources that a background task takes: a quarter of a GPU, CPUs, or none."""
    free = ray.available_resources()
    for name, amount in (("GPU", GPU_SHARE), ("CPU", float(num_cpus))):
        if free.get(name, 0) >= amount and has_room([{name: amount}], MOMENT_S):
            return {"num_cpus": 0, "num_gpus": 0, f"num_{name.lower()}s": amount}
    return {"num_cpus": 0, "num_gpus": 0}  # the workers hold everything, and may be waiting for it


def num_cpus() -> int:
    """Return how many CPUs the cluster has now; at least 1."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def most_cpus() -> int:
    """Return how many CPUs the largest machine of the cluster has; at least 1."""
    machines = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return max([1, *(int(machine.get("CPU", 0)) for machine in machines)])


@contextmanager
def user_errors() -> Iterator[None]:
    """Raise a task's UserError itself; a ClusterError if its process died, or a machine is lost."""
    try:
        yield
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError):
            raise type(cause)(str(cause).partition(RAY_DATA_ADVICE)[0]) from None
        if isinstance(cause, Exception):
            raise cause from error
        raise
    except (WorkerCrashedError, OutOfMemoryError, ActorDiedError) as error:
        raise ClusterError(
            f"a process has died, by a lack of memory or by what it read: {first_line_of(error)}"
        ) from error
    except (NodeDiedError, LocalRayletDiedError, ObjectLostError) as error:
        raise ClusterError(
            f"a machine of the cluster was lost, with tasks that ran there or what they had "
            f"returned; run the same command again ({first_line_of(error)})"
        ) from error


def find_room(
    needs: Callable[[Option], list[Needs]], options: Sequence[Option], what: str
) -> Option:
    """Return the first of ``options`` with room for its ``needs``; a ClusterError if none has.

    It waits for the last of them; the error says ``what`` needs room.
    """
    for option in options:
        if has_room(needs(option), MOMENT_S):
            return option
    words = in_words(needs(options[-1]))
    logger.info("waiting for machines with %s free", words)
    if has_room(needs(options[-1]), PATIENCE_S):
        return options[-1]
    raise ClusterError(
        f"the machines have not had {words} free in {PATIENCE_S} s, for {what}; add machines, or "
        f"run this again when they have"
    )


def in_words(needs: list[Needs]) -> str:
    """Return the sum of what processes need, for people."""
    sums = sum(map(Counter, needs), Counter[str]())
    processors = [f"{sums[name]:g} {name}s" for name in ("CPU", "GPU") if sums[name]]
    return " and ".join([*processors, f"{sums['memory'] / 1e9:.1f} GB of memory"])


def has_room(bundles: list[Needs], seconds: float) -> bool:
    """Wait until the cluster has all ``bundles`` free at once, each on one machine and GPU."""
    free = ray.available_resources()
    offered = ray.cluster_resources()
    needed = sum(map(Counter, bundles), Counter[str]())
    # A share of a GPU must fit on one of them, which sums do not say.
    is_one_place = len([node for node in ray.nodes() if node["Alive"]]) == 1 and (
        "GPU" not in needed or offered.get("GPU", 0) <= 1
    )
    if is_one_place and all(free.get(name, 0) >= n for name, n in needed.items()):
        return True  # known without a group, which takes a moment to make
    group = placement_group(bundles)  # for which an autoscaler adds missing machines
    try:
        return group.wait(math.ceil(seconds))  # Ray drops the fraction
    finally:
        _give_back(group)


def worker_share(workers: WorkersConfig) -> dict[str, float]:
    """Return what a worker holds, by Ray's names."""
    gpus = {"GPU": workers.gpus_per_worker} if workers.use_gpu else {}
    return {"CPU": workers.cpus_per_worker, **gpus}


def task_share(workers: WorkersConfig) -> dict[str, float]:
    """Return what a worker holds, by the names of a task's options."""
    return {f"num_{name.lower()}s": amount for name, amount in worker_share(workers).items()}


def check_resources(workers: WorkersConfig) -> None:
    """Wait until the cluster has room for the fewest workers; a ClusterError if it has not."""
    worker = worker_share(workers)
    if has_room([worker] * workers.fewest, workers.startup_timeout_s):
        return
    free = ray.available_resources()
    offered = ray.cluster_resources()
    per_worker = " and ".join(f"workers.{k.lower()}s_per_worker {n:g}" for k, n in worker.items())
    needs = " and ".join(
        f"{workers.fewest * n:g} {k}s (free: {free.get(k, 0):g} of {offered.get(k, 0):g})"
        for k, n in worker.items()
    )
    raise ClusterError(
        f"workers.num_workers {workers.fewest} with {per_worker} needs {needs}, each "
        f"worker's on one machine and GPU; ask for less, add machines, or, if machines are still "
        f"starting, raise workers.startup_timeout_s ({workers.startup_timeout_s:g})"
    )


@contextmanager
def no_placement_group_left() -> Iterator[None]:
    """At the end, remove the placement groups that this job still has."""
    try:
        yield
    finally:
        # Ray Train leaves one of each trial that Tune ends, which would keep its CPUs and GPUs.
        job = ray.get_runtime_context().get_job_id()
        groups = {} if is_lost() else placement_group_table()
        for group, entry in groups.items():
            is_own = group.endswith(job)  # as all ids of a job do
            if is_own and entry["state"] != "REMOVED":
                _give_back(PlacementGroup(ray.PlacementGroupID.from_hex(group)))


def _give_back(group: PlacementGroup) -> None:
    """Remove a placement group, but not while it is made."""
    # Ray 2.60 would lose what it has reserved: https://github.com/ray-project/ray/issues/64693
    deadline = time.monotonic() + DECIDES_WITHIN_S
    while time.monotonic() < deadline:
        entry = placement_group_table(group)
        if not entry or entry["stats"]["scheduling_state"] not in UNDECIDED:
            break
        time.sleep(0.01)
    remove_placement_group(group)


Call = Callable[[], Any]
TASKS_PER_CPU = 2  # so that none waits for this process
MAX_ATTEMPTS = 4


def as_task(function: Callable[..., Any], num_cpus: float = 0, **options: Any) -> Any:
    """Return ``function`` as a Ray task, also in a Tune trial; ``options`` are Ray's."""
    # With num_gpus in ray.remote, not in options, its process ends with the task: an idle one would
    # keep memory of the GPU, and might be given another one later.
    task = ray.remote(num_cpus=num_cpus, **options)(function)
    # Tune's own strategy would take a trial's resources, which may have no CPU.
    return task.options(scheduling_strategy="DEFAULT")


def in_tasks(
    tasks: Sequence[Call],
    name: str = "working",
    cpus_per_task: float = 1,
    gpus_per_task: float = 0,
) -> list[Any]:
    """Run functions on the cluster, which is started if need be; returns results in their order.

    A function whose process dies is run again. Without CPUs and GPUs they run one after the other.
    How many are done is told under ``name``.

    Raises:
        Exception: a function raised it; none runs any more.
        ClusterError: the process of a function died more than MAX_ATTEMPTS times.
        KeyboardInterrupt: Ctrl-C; this process has left the cluster.
    """
    start_ray()
    shared = ray.put(list(tasks))  # sent once for all tasks
    run = as_task(_run_one, cpus_per_task, num_gpus=gpus_per_task, max_retries=MAX_ATTEMPTS)
    waiting = deque(range(len(tasks)))
    running = dict[ray.ObjectRef, int]()
    results = [None] * len(tasks)

    def share_done() -> float:
        return 1 - (len(waiting) + len(running)) / len(tasks)

    try:
        with user_errors(), logged_progress(name, share_done):
            while waiting or running:
                most = TASKS_PER_CPU * num_cpus() if cpus_per_task or gpus_per_task else 1
                while waiting and len(running) < most:
                    number = waiting.popleft()
                    running[run.remote(shared, number)] = number
                ended, _ = ray.wait([*running])
                for task in ended:
                    results[running.pop(task)] = ray.get(task)
    except KeyboardInterrupt:
        running.clear()
        if not _is_task():  # else it is cancelled, with what it has sent
            ray.shutdown()
        raise
    finally:
        if running:  # else they write while the caller cleans up; ray.cancel can end this process
            ray.wait([*running], num_returns=len(running))
    return results


def _run_one(tasks: Sequence[Call], number: int) -> Any:
    return tasks[number]()


def _is_task() -> bool:
    try:
        ray.get_runtime_context().is_canceled()
    except RuntimeError:
        return False
    return True


@contextmanager
def limited_attempts(folder: Path, work: str) -> Iterator[None]:
    """Do ``work`` in the block; a ClusterError names it if MAX_ATTEMPTS processes died at it.

    An attempt leaves a mark in ``folder``, which all machines can reach, until it ends.
    """
    # Ray Data itself starts its tasks and actors again for ever.
    folder.mkdir(parents=True, exist_ok=True)
    marks = folder / hashlib.blake2b(work.encode(), digest_size=8).hexdigest()
    if marks.exists() and marks.stat().st_size >= MAX_ATTEMPTS:
        raise ClusterError(
            f"{work}: {MAX_ATTEMPTS} processes have died at it, by a lack of memory or by what "
            f"they read"
        )
    with marks.open("ab") as file:
        file.write(b".")
    try:
        yield
    finally:
        marks.unlink(missing_ok=True)  # whoever ends the work may have removed the folder
