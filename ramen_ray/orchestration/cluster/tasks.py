"""Run functions as tasks on the cluster, and limit how often one may end its process."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.cluster.joining import ClusterError, start_ray
from ramen_ray.orchestration.cluster.resources import num_cpus, user_errors

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


def in_tasks(tasks: Sequence[Call], name: str = "working", cpus_per_task: float = 1) -> list[Any]:
    """Run functions on the cluster, which is started if need be; returns results in their order.

    A function whose process dies is run again. With ``cpus_per_task`` 0 they run one after the
    other. How many are done is told under ``name``.

    Raises:
        Exception: a function raised it; none runs any more.
        ClusterError: the process of a function died more than MAX_ATTEMPTS times.
        KeyboardInterrupt: Ctrl-C; this process has left the cluster.
    """
    start_ray()
    shared = ray.put(list(tasks))  # sent once for all tasks
    run = as_task(_run_one, cpus_per_task, max_retries=MAX_ATTEMPTS)
    waiting, running = deque(range(len(tasks))), dict[ray.ObjectRef, int]()
    results = [None] * len(tasks)

    def share_done() -> float:
        return 1 - (len(waiting) + len(running)) / len(tasks)

    try:
        with user_errors(), logged_progress(name, share_done):
            while waiting or running:
                most = TASKS_PER_CPU * num_cpus() if cpus_per_task else 1
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
