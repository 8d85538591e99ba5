"""Run functions that write their results to files as tasks on the cluster."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import ray

from ramen_ray.data.tasks import Task
from ramen_ray.orchestration.cluster.resources import (
    num_cpus,
    start_ray,
    task_of,
    user_errors,
)

MAX_TASKS_HERE = 7  # more would take longer than starting a cluster
TASKS_PER_CPU = 2  # so that none waits for this process


def in_tasks(tasks: Sequence[Task]) -> list[Any]:
    """Run functions on the cluster's CPUs; returns their results, in their order.

    If there are few and this process has not joined a cluster, it runs them itself.

    Raises:
        DatasetError: a function raised it; those that run then are waited for, no others start.
    """
    if len(tasks) <= MAX_TASKS_HERE and not ray.is_initialized():
        return [task() for task in tasks]
    start_ray()
    run, shared = task_of(_run_one), ray.put(list(tasks))  # sent once for all tasks
    waiting, running = deque(range(len(tasks))), dict[ray.ObjectRef, int]()
    results = [None] * len(tasks)
    try:
        with user_errors():
            while waiting or running:
                while waiting and len(running) < TASKS_PER_CPU * num_cpus():
                    number = waiting.popleft()
                    running[run.remote(shared, number)] = number
                (ended,), _ = ray.wait([*running])
                results[running.pop(ended)] = ray.get(ended)
    finally:  # else some write while the caller cleans up; to cancel them can end this process
        if running:
            ray.wait([*running], num_returns=len(running))
    return results


def _run_one(tasks: Sequence[Task], number: int) -> Any:
    return tasks[number]()
