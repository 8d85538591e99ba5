"""What happens to a training whose disk is full; imports little, as Ray's controller imports it."""

from typing import Any

from ray.train import UserCallback
from ray.train.v2.api.exceptions import ControllerError

from ramen_ray.full_disk import is_disk_full


class EndOnFullDisk(UserCallback):
    """Ends a training whose disk is full: workers that are started anew would find it full."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """End the training, as Ray Train does not retry errors of its controller."""
        for error in worker_exceptions.values():
            if is_disk_full(error):
                raise ControllerError(error)
