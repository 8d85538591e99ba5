"""Functions that leave their results in files, run as tasks of the cluster."""

from collections.abc import Callable, Sequence
from typing import Any

import ray

from ramen_ray.orchestration.cluster.resources import start_ray, task_of, user_errors

Task = Callable[[], Any]

MAX_TASKS_HERE = 7  # which take about as long as a cluster takes to start


def in_tasks(tasks: Sequence[Task]) -> list[Any]:
    """Run functions on the cluster's CPUs; returns what they return, in their order.

    A process that has not joined a cluster runs a few of them itself, one after another.

    Raises:
        DatasetError: a function raised it; the others have been cancelled.
    """
    if len(tasks) <= MAX_TASKS_HERE and not ray.is_initialized():
        return [task() for task in tasks]
    start_ray()
    run, shared = task_of(_run_one), ray.put(list(tasks))  # what tasks share is sent once
    running = [run.remote(shared, number) for number in range(len(tasks))]
    try:
        with user_errors():
            return list(ray.get(running))
    except BaseException:
        for task in running:
            ray.cancel(task)
        ray.wait(running, num_returns=len(running))  # none writes where its caller cleans up
        raise


def _run_one(tasks: Sequence[Task], number: int) -> Any:
    return tasks[number]()
