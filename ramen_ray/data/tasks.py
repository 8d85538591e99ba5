"""Work cut into tasks, which a caller runs where it likes: in this process, or on a cluster."""

from collections.abc import Callable, Sequence
from typing import Any

Task = Callable[[], Any]

RunTasks = Callable[[Sequence[Task]], list[Any]]
"""Runs tasks in any order (they share only files); returns the results in the given order."""

ROWS_HERE = 2_000_000
"""Rows that one process works on in about the time that a cluster takes to start."""


def one_after_another(tasks: Sequence[Task]) -> list[Any]:
    """Run tasks in this process."""
    return [task() for task in tasks]


def runner_for(num_rows: int, run: RunTasks) -> RunTasks:
    """Return ``run`` if tasks work on many rows, or, for few, what runs them in this process."""
    return run if num_rows > ROWS_HERE else one_after_another
