"""Runs that are compared: a folder that one process works in, and the run in MLflow of them all.

What has become of each trial is read from its run's folder; the table of a sweep's trials,
``trials.json``, is all that a sweep goes on from.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ramen_ray.config import RunConfig, Section, flatten, overlay
from ramen_ray.data.store.made_folder import in_use, read_json, write_json
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import check_resources
from ramen_ray.orchestration.run.checkpoints import REPORT_FILE
from ramen_ray.orchestration.run.directory import (
    RunDirectory,
    RunError,
    checkpoint_folders,
    deciding_settings,
)
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.reports.report_tables import ReportTable, as_list, as_markdown
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.runs import Run

EPOCH = "epoch"
STOPPED_EARLY = "stopped early"
OUT_OF_TIME = "out of time"
FAILED = "failed: "
TABLE_FILE = "trials.json"


@dataclass(frozen=True)
class Experiment:
    """Runs of one dataset, which are parts of one run in MLflow."""

    inputs: Inputs  # of the configuration that its runs change
    directory: RunDirectory
    run: Run  # in MLflow

    @property
    def report(self) -> Path:
        """Folder of its tables and plots."""
        return self.directory.path / "report"

    def publish(self, sentences: Iterable[str], *tables: ReportTable) -> None:
        """Write sentences and tables as Markdown, by which the run in MLflow is described too."""
        page = "\n\n".join([as_list(sentences), *map(as_markdown, tables)])
        self.report.mkdir(exist_ok=True)
        kind = self.directory.path.parent.name.removesuffix("s")
        (self.report / f"{kind}.md").write_text(f"{page}\n")
        self.run.log_artifacts(self.report)
        self.run.describe(page)

    def named(self, config: RunConfig, name: str, **changes: Any) -> RunConfig:
        """Return the configuration of one of its runs, whose ``name`` then begins with its own."""
        return overlay(config, {**changes, "name": joined_name(self.directory.name, name)})


@contextmanager
def open_experiment(
    inputs: Inputs, kind: str, word: str, settings: Section, plan: Mapping[str, Any]
) -> Iterator[Experiment]:
    """Hold the folder of an experiment, with Ray started and its MLflow run open.

    The folder is among those of its ``kind``; a ``word`` is in its name if the configuration has
    none. With the inputs, the ``plan`` is what must be the same to go on. Raises a ClusterError,
    TrackingError, or a RunError if another process holds the folder, or it has other runs.
    """
    config = inputs.config
    dataset = inputs.dataset
    whole_plan = {**deciding_settings(config), "dataset": dataset.fingerprint, **plan}
    key = short_hash(json.dumps(whole_plan, sort_keys=True))
    name = config.name or joined_name(dataset.name, word, key)
    output = Path(config.output)
    directory = RunDirectory.of(config.output, name, kind)
    directory.refuse_another(whole_plan, kind.removesuffix("s"))
    held = directory.held(inputs.made_from, dataset.path, config.allow_changed)
    with in_use(dataset.path), held:
        # a trial that is stopped early prints a traceback
        start_ray(show_workers=False, for_ray_train=True)
        check_resources(config.workers)
        run = directory.open_run(tracking_uri(output), config.experiment, output)
        with run.closing():
            directory.note(plan=whole_plan)
            run.log_parameters(flatten(config) | flatten(settings), {"dataset": dataset.name})
            try:
                yield Experiment(inputs, directory, run)
                # of one dataset, MLflow keeps the figures that come first: those of the runs
                run.log_dataset(dataset.name, inputs.made_from["dataset"], dataset.path, {})
            except RunError:  # maybe as what runs are made from is not what it was
                inputs.check_still()
                raise
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(
                    "the same command keeps finished runs, and goes on"
                ) from stop


def record_of(run: RunDirectory, decides: Sequence[str]) -> TrialRecord:
    """Return how far a trial's run came, by what answers, or would: the last that was validated.

    Its value is the mean of the validation metrics that are named in ``decides``. Figures of the
    test split are not shown, as they may not choose.
    """
    reports = []
    for folder in checkpoint_folders(run.path):
        with suppress(FileNotFoundError):  # it has gone meanwhile
            reports.append(read_json(folder / REPORT_FILE))
    notes = run.notes
    record = TrialRecord(run.name, mlflow_run_id=notes.get("mlflow_run_id"))
    if not reports:
        return record
    record = replace(record, epochs=reports[-1][EPOCH], seconds=reports[-1]["trained_seconds"])
    metrics = {
        name.removeprefix(VALIDATION): value
        for report in reports
        for name, value in report.items()
        if name.startswith(VALIDATION)
    }
    if notes.get("finished"):
        metrics = notes["metrics"]["trained"]["validation"]
        end = f"trained to the end ({record.seconds:.0f} s)"
        record = replace(record, is_whole=True, end=end)
    if not metrics:
        return record
    value = sum(metrics[name] for name in decides) / len(decides)
    return replace(record, value=value, metrics=metrics)


def write_trials(folder: Path, records: Mapping[str, TrialRecord]) -> None:
    """Write the table of a sweep's folder anew."""
    write_json(folder / TABLE_FILE, [asdict(record) for record in records.values()])


def read_trials(folder: Path) -> dict[str, TrialRecord]:
    """Read a sweep's trials by name, in the order of their begin; none if it has no table yet.

    Raises a RunError if the file is not such a table.
    """
    file = folder / TABLE_FILE
    if not file.is_file():
        return {}
    try:
        return {row["name"]: TrialRecord(**row) for row in read_json(file)}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} is damaged; to begin the sweep anew, delete {folder}") from error
