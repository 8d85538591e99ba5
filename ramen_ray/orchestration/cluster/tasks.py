"""Run functions as tasks on the cluster."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ray

from ramen_ray.orchestration.cluster.resources import (
    num_cpus,
    start_ray,
    task_of,
    user_errors,
)

logger = logging.getLogger(__name__)

Task = Callable[[], Any]
RunTasks = Callable[[Sequence[Task]], list[Any]]
"""Runs tasks in any order (they share only files); returns the results in the given order."""

ROWS_HERE = 2_000_000
"""Rows that one process works on in about the time that a cluster takes to start."""
TASKS_PER_CPU = 2  # so that none waits for this process
SECONDS_BETWEEN_LINES = 30


def runner_for(num_rows: int) -> RunTasks:
    """Return what runs tasks that work on so many rows: the cluster or, for few, this process."""
    return in_tasks if num_rows > ROWS_HERE else lambda tasks: [task() for task in tasks]


def in_tasks(tasks: Sequence[Task], name: str | None = None) -> list[Any]:
    """Run functions on the cluster's CPUs, which is started if need be; returns their results.

    Args:
        tasks: the functions; results come in their order.
        name: what they do, to log how many are done every half minute; None to log nothing.

    Raises:
        DatasetError: a function raised it; those that were sent to the cluster before, at most
            ``TASKS_PER_CPU`` for each CPU, are waited for.
        ClusterError: the process of a function died.
        KeyboardInterrupt: Ctrl-C; this process has left the cluster, so what it sent there ends.
    """
    start_ray()
    run, shared = task_of(_run_one), ray.put(list(tasks))  # sent once for all tasks
    waiting, running = deque(range(len(tasks))), dict[ray.ObjectRef, int]()
    results = [None] * len(tasks)
    next_line_at = time.monotonic() + SECONDS_BETWEEN_LINES
    try:
        with user_errors():
            while waiting or running:
                while waiting and len(running) < TASKS_PER_CPU * num_cpus():
                    number = waiting.popleft()
                    running[run.remote(shared, number)] = number
                ended, _ = ray.wait([*running], timeout=SECONDS_BETWEEN_LINES)
                for one in ended:
                    results[running.pop(one)] = ray.get(one)
                if name is not None and time.monotonic() > next_line_at:
                    left = len(waiting) + len(running)
                    logger.info("%s: %d of %d parts", name, len(tasks) - left, len(tasks))
                    next_line_at = time.monotonic() + SECONDS_BETWEEN_LINES
    except KeyboardInterrupt:
        running.clear()
        ray.shutdown()
        raise
    finally:  # else some write while the caller cleans up; to cancel them can end this process
        if running:
            ray.wait([*running], num_returns=len(running))
    return results


def _run_one(tasks: Sequence[Task], number: int) -> Any:
    return tasks[number]()
