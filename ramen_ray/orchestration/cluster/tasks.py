"""Run functions that write their results to files as tasks on the cluster."""

from collections.abc import Callable, Sequence
from typing import Any

import ray

from ramen_ray.orchestration.cluster.resources import start_ray, task_of, user_errors

Task = Callable[[], Any]

MAX_TASKS_HERE = 7  # more would take longer than starting a cluster


def in_tasks(tasks: Sequence[Task]) -> list[Any]:
    """Run functions on the cluster's CPUs; returns their results, in their order.

    If there are few and this process has not joined a cluster, it runs them itself.

    Raises:
        DatasetError: a function raised it; the others are cancelled.
    """
    if len(tasks) <= MAX_TASKS_HERE and not ray.is_initialized():
        return [task() for task in tasks]
    start_ray()
    run, shared = task_of(_run_one), ray.put(list(tasks))  # sent once for all tasks
    running = [run.remote(shared, number) for number in range(len(tasks))]
    try:
        with user_errors():
            return list(ray.get(running))
    except BaseException:
        for task in running:
            ray.cancel(task)
        ray.wait(running, num_returns=len(running))  # else some write while the caller cleans up
        raise


def _run_one(tasks: Sequence[Task], number: int) -> Any:
    return tasks[number]()
