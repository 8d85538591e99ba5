"""What has become of trials: Tune knows which have ended, runs' folders how far they came.

The table of a sweep's trials, ``trials.parquet``, is all that a sweep goes on from.
"""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ray import tune
from ray.tune.experiment import Trial

from ramen_ray.config import RunConfig
from ramen_ray.data.store.made_folder import read_json, whole_file
from ramen_ray.long_work import Pace
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.run.checkpoints import REPORT_FILE
from ramen_ray.orchestration.run.directory import RunDirectory, RunError, checkpoint_folders
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.orchestration.tune.experiment import Experiment
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

NAME = "name"
EPOCH = "epoch"
SHARE_DONE = "share_done"  # of a trial's training
ERROR = "error"  # what a trial has failed with; it ends as others do, as Tune would start it again
STOPPED_EARLY = "stopped early"
OUT_OF_TIME = "out of time"
FAILED = "failed: "
TABLE_FILE = "trials.parquet"
AS_JSON = ("params", "drawn", "metrics", "course")
ENDED = (Trial.TERMINATED, Trial.ERROR)


def name_of(trial: Trial) -> str:
    """Return the name that a trial was given."""
    return str(trial.config[NAME])


def record_of(run: RunDirectory, params: Mapping[str, Any], decides: Sequence[str]) -> TrialRecord:
    """Return how far a trial's run came, by what answers, or would: the last that was validated.

    Its value is the mean of the validation metrics that are named in ``decides``. Figures of the
    test split are not shown, as they may not choose.
    """
    reports = []
    for folder in checkpoint_folders(run.path):
        with suppress(FileNotFoundError):  # it has gone meanwhile
            reports.append(read_json(folder / REPORT_FILE))
    notes = run.notes
    record = TrialRecord(run.name, params, mlflow_run_id=notes.get("mlflow_run_id"))
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


def in_percent(metrics: Mapping[str, float], names: Sequence[str]) -> str:
    """Return some metrics for people."""
    return ", ".join(f"{name} {100 * metrics[name]:.2f}" for name in names)


@dataclass(eq=False)
class TrialLog(tune.Callback):
    """Logs how far trials are, and how each ends."""

    experiment: Experiment
    decides: Sequence[str]  # validation metrics, the mean of which is a trial's value
    total: int = 0  # how many trials there will be
    prefix: str = ""  # begins the names of trials' runs
    ends_at: float = math.inf  # by the monotonic clock
    on_end: Callable[[list[TrialRecord]], None] | None = None  # gets all records when one has ended

    def setup(self, **_: Any) -> None:
        """Begin, or go on in another process."""
        self.pace = Pace()
        self.courses = defaultdict[str, list[list[float]]](list)
        self.trials: list[Trial] = []

    def record(self, trial: Trial, has_ended: bool | None = None) -> TrialRecord:
        """Return what has become of a trial, by default as Tune has it now."""
        name = name_of(trial)
        directory = RunDirectory.of(self.config.output, self.run_of(name))
        record = record_of(directory, trial.config, self.decides)
        record = replace(record, name=name, course=self.courses[name])
        if record.is_whole or not (trial.status in ENDED if has_ended is None else has_ended):
            return record
        if (message := self.error_of(trial)) is not None:
            return replace(record, end=f"{FAILED}{message}")
        is_late = record.value is None or time.monotonic() >= self.ends_at
        return replace(record, end=OUT_OF_TIME if is_late else STOPPED_EARLY)

    def __getstate__(self) -> dict[str, Any]:
        """Leave nothing in Tune's files, as the address of a store may have a password."""
        return {}

    @property
    def config(self) -> RunConfig:
        """What the trials change."""
        return self.experiment.inputs.config

    def run_of(self, name: str) -> str:
        """Return the name of a trial's run."""
        return joined_name(self.prefix, name) if self.prefix else name

    def error_of(self, trial: Trial) -> str | None:
        """Return why a trial failed, in one line; None if it did not."""
        if trial.status != Trial.ERROR:
            raised: str | None = trial.last_result.get(ERROR)
            return raised
        return (
            f"its process has died {trial.max_failures + 1} times, once more than "
            f"workers.max_failures allows; see whether its machine has enough memory"
        )

    def on_step_end(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Log, now and then, which trials run, the best value, and the time left."""
        if not self.pace.is_due():
            return
        most = self.config.training.epochs
        running = [trial for trial in trials if trial.status == Trial.RUNNING]
        epochs = [trial.last_result.get(EPOCH, 0) for trial in running]
        num_ended = sum(trial.status in ENDED for trial in trials)
        if not running and not num_ended:
            return
        said = f"{num_ended} of {self.total} trials have ended, {len(running)} run"
        if running:
            of_most = f" of {most}" if max(epochs) <= most else ""  # or longer
            said += f" (epoch {', '.join(f'{epoch:g}' for epoch in epochs)}{of_most})"
        records = [record for record in map(self.record, trials) if record.value is not None]
        if records:
            best = max(records, key=lambda record: record.value or 0)
            said += f"; best so far: validation {in_percent(best.metrics, self.decides)}"
        done = num_ended + sum(min(epoch / most, 1) for epoch in epochs)
        by_pace = self.pace.seconds_left(done, self.total)
        left = min(math.inf if by_pace is None else by_pace, self.ends_at - time.monotonic())
        logger.info(said if left == math.inf else f"{said}; at most about {left:.0f} s left")

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        """Note what a trial has reached, and when, for trials of later calls."""
        if SHARE_DONE not in result:  # it ended before its first validation
            return
        values = [result[VALIDATION + name] for name in self.decides]
        self.courses[name_of(trial)].append([result[SHARE_DONE], sum(values) / len(values)])

    def on_experiment_end(self, trials: list[Trial], **_: Any) -> None:
        """Keep the trials; Tune's files of them may be cut by a full disk."""
        self.trials = trials

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """Log a trial that finished, failed or was stopped early."""
        self._end(trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """Log that the processes of a trial have died too often."""
        self._end(trials, trial)

    def _end(self, trials: list[Trial], trial: Trial) -> None:
        record = self.record(trial, has_ended=True)
        others = [other for other in trials if other is not trial and other.status in ENDED]
        is_repeated = record.end.startswith(FAILED) and record.end[len(FAILED) :] in {
            self.error_of(other) for other in others
        }
        if not is_repeated:
            figures = in_percent(record.metrics, self.decides) if record.metrics else ""
            reached = f"validation {figures}, " if figures else ""
            number = f"{len(others) + 1}/{self.total}"
            logger.info("%s %s: %s%s", number, record.name, reached, record.end)
        try:
            if record.mlflow_run_id is not None and not record.is_whole:
                status = "FAILED" if record.end.startswith(FAILED) else "FINISHED"
                Run(self.experiment.run.uri, record.mlflow_run_id).close_if_open(status)
            if self.on_end is not None:
                self.on_end([record, *map(self.record, (t for t in trials if t is not trial))])
        except Exception as error:  # an error here would fail the trial; the end shows all again
            logger.warning("%s is not shown in MLflow yet: %s", record.name, error)


def failures(records: Collection[TrialRecord]) -> str:
    """Say which runs failed, each error once; "" if none did."""
    names = defaultdict[str, list[str]](list)
    for record in records:
        if record.end.startswith(FAILED):
            names[record.end.removeprefix(FAILED)].append(record.name)
    if not names:
        return ""
    count = sum(map(len, names.values()))
    lines = "\n".join(f"  {', '.join(failed)}: {error}" for error, failed in names.items())
    return f"{count} of {len(records)} runs failed:\n{lines}"


def write_trials(folder: Path, records: Mapping[str, TrialRecord]) -> None:
    """Write the table of a sweep's folder anew."""
    rows = [asdict(record) for record in records.values()]
    for row in rows:
        row |= {column: json.dumps(row[column]) for column in AS_JSON}
    with whole_file(folder / TABLE_FILE) as aside:
        pq.write_table(pa.Table.from_pylist(rows), aside)


def read_trials(folder: Path) -> dict[str, TrialRecord]:
    """Read a sweep's trials by name, in the order of their begin; none if it has no table yet.

    Raises a RunError if the file is not such a table.
    """
    file = folder / TABLE_FILE
    if not file.is_file():
        return {}
    try:
        rows = pq.read_table(file).to_pylist()
        parsed = [row | {column: json.loads(row[column]) for column in AS_JSON} for row in rows]
        return {row["name"]: TrialRecord(**row) for row in parsed}
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} is damaged; to begin the sweep anew, delete {folder}") from error
