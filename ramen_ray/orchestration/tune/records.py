"""How far trials are and how each ended: told while they run, and kept in files that outlive it."""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from ramen_ray.config import TrainingConfig
from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.method.metrics.judgement import HEADLINES
from ramen_ray.naming import name_like
from ramen_ray.orchestration.run.directory import RunError
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.told import Pace

logger = logging.getLogger(__name__)

NAME = "name"
SUMMARY = "summary"
EPOCH = "epoch"
STOPPED_EARLY = "stopped early"
OUT_OF_TIME = "out of time"
FAILED = "failed: "
ValueOf = Callable[[Mapping[str, float]], float]
"""Returns what decides, from the metrics of a validation by name; the higher, the better."""
OnEnd = Callable[[TrialRecord, str], None]
"""Called with a trial that has ended, and the status of its MLflow run."""


def name_of(trial: Trial) -> str:
    """Return a trial's name: a given one, or its number and the values that it tries."""
    if NAME in trial.config:
        return str(trial.config[NAME])
    number = trial.experiment_tag.partition("_")[0].zfill(3)
    tried = [f"{key.partition('.')[2] or key}-{_short(of)}" for key, of in trial.config.items()]
    return name_like("-".join([number, *tried]), number)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@contextmanager
def kept_error(folder: Path, name: str) -> Iterator[None]:
    """Keep, in that of :class:`Records`, the message of an error that ends a trial."""
    file = _message_of(folder, name)
    if file.exists():  # Tune starts each trial again that fails
        raise RunError(file.read_text())
    try:
        yield
    except Exception as error:
        message = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        file.write_text(message[0])
        raise


def _message_of(folder: Path, name: str) -> Path:
    return folder / f".{name}"


_OPEN = dict[Path, "Records"]()
"""By folder: Tune pickles its callbacks to disk, and those here know addresses with passwords."""


def _opened(folder: Path) -> "Records":
    return _OPEN[folder]


class Records(tune.Callback):
    """Keeps a record of each trial in a file, and logs the progress of all.

    What is unpickled is what this process has opened on the same folder.
    """

    def __init__(
        self,
        folder: Path,
        training: TrainingConfig,
        value_of: ValueOf | None = None,
        on_end: OnEnd = lambda ended, status: None,
        total: int = 0,
    ) -> None:
        """Expect ``total`` trials of a run's training; all machines can reach the ``folder``.

        What decides, and is told, is by default the selection metric; else the headlines are told.
        """
        self.folder, self.total, self.training, self.on_end = folder, total, training, on_end
        self.value_of = value_of or (lambda metrics: metrics[training.selection_metric])
        self.told = HEADLINES if value_of else (training.selection_metric,)
        self.pace, self.ends_at = Pace(), math.inf
        self._earlier_seconds: dict[str, float] = {}  # by trial, before it was started last
        folder.mkdir(parents=True, exist_ok=True)
        _OPEN[folder] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.folder,)

    def all(self) -> dict[str, TrialRecord]:
        """Return the records by name."""
        files = sorted(self.folder.glob("[!.]*.json"))
        return {file.stem: TrialRecord(**json.loads(file.read_text())) for file in files}

    def errors(self) -> dict[str, str]:
        """Return the errors of failed trials, one line each, by name."""
        ends = {name: one.end for name, one in self.all().items()}
        return {name: of.removeprefix(FAILED) for name, of in ends.items() if of.startswith(FAILED)}

    def num_ended(self) -> int:
        """Return how many trials have ended."""
        return sum(bool(one.end) for one in self.all().values())

    def forget_failures(self) -> None:
        """Forget the failures of trials, so that these count as not ended."""
        for name in self.errors():
            self._file(name).unlink()
        for file in self.folder.glob(".*"):
            file.unlink()

    def settle(self, names: Container[str]) -> None:
        """Record that a time limit has stopped what has not ended; forget all but these trials."""
        for name, one in self.all().items():
            if name not in names:  # Tune was killed before it had noted it
                self._file(name).unlink()
            elif not one.end:
                self._end(one, OUT_OF_TIME)

    def write(self, record: TrialRecord) -> None:
        """Keep a record in place of the one before."""
        with whole_file(self._file(record.name)) as aside:
            aside.write_text(json.dumps(asdict(record), default=lambda one: one.item()))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _of(self, trial: Trial) -> TrialRecord:
        file = self._file(name_of(trial))
        if file.exists():
            return TrialRecord(**json.loads(file.read_text()))
        return TrialRecord(name_of(trial), trial.config)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """Begin a record, unless the trial goes on."""
        record = self._of(trial)
        self._earlier_seconds[record.name] = record.seconds
        self.write(record)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        """Keep a trial's validation, if it is the best or the last."""
        metrics = {
            name.removeprefix(VALIDATION): value
            for name, value in result.items()
            if name.startswith(VALIDATION)
        }
        value, is_whole = self.value_of(metrics), SUMMARY in result
        before = self._of(trial)
        seconds = self._earlier_seconds.get(before.name, 0.0) + result["time_total_s"]
        if is_whole or before.value is None or value > before.value:
            before = replace(before, value=value, metrics=metrics, is_whole=is_whole)
        self.write(replace(before, epochs=result[EPOCH], seconds=seconds))

    def on_step_end(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Log, now and then, which trials run, the best value, and the time left."""
        if not self.pace.is_due():
            return
        running = [one for one in trials if one.status == Trial.RUNNING]
        epochs = [one.last_result.get(EPOCH, 0) for one in running]
        num_ended, most = self.num_ended(), self.training.epochs
        if not running and not num_ended:
            return
        said = f"{num_ended} of {self.total} trials have ended, {len(running)} run"
        if running:
            of_most = f" of {most}" if max(epochs) <= most else ""  # some may train longer
            said += f" (epoch {', '.join(f'{one:g}' for one in epochs)}{of_most})"
        if found := [one for one in self.all().values() if one.value is not None]:
            best = max(found, key=lambda one: one.value or 0)
            said += f"; best so far: {self._reached(best)}"
        done = num_ended + sum(min(one / most, 1) for one in epochs)
        by_pace = self.pace.seconds_left(done, self.total)
        left = min(math.inf if by_pace is None else by_pace, self.ends_at - time.monotonic())
        logger.info(said if left == math.inf else f"{said}; at most about {left:.0f} s left")

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """Let a trial whose process did not die be started again but once."""
        if _message_of(self.folder, name_of(trial)).exists():
            trial.run_metadata.num_failures = trial.max_failures

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """Record a trial that finished or was stopped early."""
        record = self._of(trial)
        reached = f"{self._reached(record)}, " if record.metrics else ""
        said = trial.last_result.get(SUMMARY)
        end = STOPPED_EARLY if said is None else f"{said} ({record.seconds:.0f} s)"
        ended = self._end(record, end, reached)
        self.on_end(ended, "FINISHED")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """Record why a trial failed."""
        file = _message_of(self.folder, name_of(trial))
        error = (
            file.read_text()
            if file.exists()
            else f"its process has died {trial.max_failures + 1} times, once more than "
            f"workers.max_failures allows; see whether its machine has enough memory"
        )
        trial.run_metadata.num_failures = 0  # a sweep that is resumed tries it again
        self.on_end(self._end(self._of(trial), f"{FAILED}{error}"), "FAILED")

    def _reached(self, record: TrialRecord) -> str:
        figures = [f"{name} {100 * record.metrics[name]:.2f}" for name in self.told]
        return f"validation {', '.join(figures)}"

    def _end(self, record: TrialRecord, end: str, reached: str = "") -> TrialRecord:
        is_repeated = end.startswith(FAILED) and end.removeprefix(FAILED) in self.errors().values()
        ended = replace(record, end=end)
        self.write(ended)
        if not is_repeated:
            logger.info("%d/%d %s: %s%s", self.num_ended(), self.total, ended.name, reached, end)
        return ended


def failures(errors: Mapping[str, str], num_runs: int) -> str:
    """Say which runs failed, each error once."""
    names = defaultdict[str, list[str]](list)
    for name, error in errors.items():
        names[error].append(name)
    lines = "\n".join(f"  {', '.join(failed)}: {error}" for error, failed in names.items())
    return f"{len(errors)} of {num_runs} runs failed:\n{lines}"
