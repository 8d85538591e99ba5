"""The finished run that a combiner extends, and whether its dataset has novel ads to measure on."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig, read_config
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.errors import UserError, shown_path
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    RunDirectory,
    RunError,
    run_with_id,
)
from ramen_ray.tracking.registry import LoggedRetriever, Registry
from ramen_ray.tracking.runs import MODELS


class CombinerError(UserError):
    """A combiner cannot be trained on a run."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that a combiner extends."""

    directory: RunDirectory
    model: Path  # folder of its best model
    config: RunConfig
    dataset: Dataset  # the zero-shot split that it was trained on
    retriever: LoggedRetriever

    @property
    def part(self) -> Part:
        """Which of its vectors answer."""
        part: Part = self.directory.notes.get("part") or "encoder"
        return part


def open_finished_run(registry: Registry, run: str, output: Path) -> FinishedRun:
    """Open a run, and check that its dataset is the novel split that it was trained on.

    ``run`` is its folder, or the URI of its retriever, to look for the run in ``output``.

    Raises:
        RunError: there is no such run, or it is not finished.
        CombinerError: its dataset has no novel ads, or reveals clicks on them.
        DatasetError: its dataset is missing or has changed since.
    """
    directory = RunDirectory(Path(run).absolute())
    if run.startswith(MODELS):
        logged_by = registry.look_up(run).run_id
        if (earlier := run_with_id(output, logged_by)) is None:
            raise RunError(
                f"no run in {output.absolute() / 'runs'} logged {run} (MLflow run {logged_by}); "
                f"give the folder of the run that trained its encoder"
            )
        directory = earlier
    path = directory.path
    if not directory.is_run:
        raise RunError(f"{path} is not the folder of a run; see {output.absolute() / 'runs'}")
    model = directory.best_checkpoint
    config = read_config(path / CONFIG_FILE)
    dataset = Dataset(config.dataset)
    split: dict[str, Any] | None = dataset.metadata.get("novel_split")
    if not dataset.has("novel_ads") or split is None:
        raise CombinerError(
            f"{dataset.path}, on which the run was trained, has no novel ads to evaluate on; make "
            f"a split of it (python jobs/ingest.py novel --dataset "
            f"{shlex.quote(shown_path(dataset.path))} ...) and train on that"
        )
    if split["one_shot"]:
        raise CombinerError(
            f"{dataset.path}, on which the run was trained, reveals a click of each novel ad to "
            f"training; train on its zero-shot split"
        )
    run_id, model_id = registry.find_logged(str(directory.mlflow_run_id), None)
    retriever = registry.look_up(f"{MODELS}{model_id}")
    if dataset.fingerprint != retriever.metadata["dataset_fingerprint"]:
        raise DatasetError(
            f"{dataset.path} has changed since the run {directory.name} was trained on it "
            f"(MLflow run {run_id}); train again"
        )
    return FinishedRun(directory, model, config, dataset, retriever)
