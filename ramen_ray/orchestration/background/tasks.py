"""The background tasks of a run."""

from ramen_ray.config import RunConfig
from ramen_ray.orchestration.background.pruning import pruning_task
from ramen_ray.orchestration.background.shortlists import shortlist_task
from ramen_ray.orchestration.background.task import BackgroundTask, TaskContext


def background_tasks(config: RunConfig, run: TaskContext) -> list[BackgroundTask]:
    """Build the tasks that a configuration needs, in the order in which their results are taken."""
    tasks = (pruning_task(config, run), shortlist_task(config, run))
    return [task for task in tasks if task is not None]
