"""Earlier runs in the same outputs, with which a search need not begin anew."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ramen_ray.config import EncoderConfig, RunConfig, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import UserError
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    RUNS,
    VALIDATION_ADS_FILE,
    RunDirectory,
    read_run_config,
)
from ramen_ray.orchestration.run.identity import identity_of


def earlier_runs(start: RunConfig, dataset: Dataset) -> Iterator[RunConfig]:
    """Yield the configurations of finished runs that compare with ``start``, with their names.

    They were made from the same ``dataset`` and software, with the same encoder and seed, and
    selected by the same metric.
    """
    for file in sorted((Path(start.output) / RUNS).glob(f"*/{CONFIG_FILE}")):
        directory = RunDirectory(file.parent)
        if not (directory.path / VALIDATION_ADS_FILE).is_file():
            continue
        with suppress(UserError):  # damaged, or of an earlier version
            config = read_run_config(file)
            is_same = directory.notes.get("made_from") == identity_of(config, dataset)
            if directory.is_finished and is_same and _compared(config) == _compared(start):
                here = {"name": directory.name, "dataset": start.dataset, "workers": start.workers}
                yield overlay(config, here)


def _compared(config: RunConfig) -> tuple[EncoderConfig, int, str]:
    return config.encoder, config.seed, config.training.selection_metric
