"""Runs that are evaluated, but not served."""

from pathlib import Path

from ramen_ray.config import read_config
from ramen_ray.orchestration.runs.run_directory import CONFIG_FILE, RUN_FILE
from ramen_ray.tracking.registry import RegistryError, not_served


def refuse_unserved(model: str) -> None:
    """Refuse the folder of a run of OAK where a retriever is expected.

    Raises:
        RegistryError: it is one.
    """
    folder = Path(model)
    is_run = (folder / RUN_FILE).is_file() and (folder / CONFIG_FILE).is_file()  # not of a sweep
    if is_run and read_config(folder / CONFIG_FILE).oak.anchor_sets:
        raise RegistryError(not_served(folder.name))
