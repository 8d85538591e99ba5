"""How far trials are and how each ended: told while they run, and kept in files that outlive it."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from ramen_ray.config import TrainingConfig
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.naming import name_like
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.workers import VALIDATION
from ramen_ray.reports.recommendation import Outcome
from ramen_ray.told import BETWEEN_LINES_S, FIRST_LINE_S, Pace

logger = logging.getLogger(__name__)

NAME = "name"
SUMMARY = "summary"
EPOCH = "epoch"
STOPPED_EARLY = "stopped early"
OUT_OF_TIME = "out of time"
FAILED = "failed: "
OnEnd = Callable[[list[Trial], Trial, str], None]
"""Called with all trials, the one that has ended, and the status of its MLflow run."""


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
    """Keep, in that of :class:`Ends`, the message of an error that ends a trial."""
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


class Ends(tune.Callback):
    """Logs the progress of trials, and how each ended, in files that outlive this process.

    The ``folder``, which all machines can reach, has one for each ended trial, named after it.
    """

    def __init__(
        self, folder: Path, total: int, training: TrainingConfig, on_end: OnEnd | None = None
    ) -> None:
        """Expect ``total`` trials of a run's training."""
        self.on_end = on_end or (lambda trials, ended, status: None)
        self.folder, self.total, self.training = folder, total, training
        self.metric = VALIDATION + training.selection_metric
        self.pace, self.next_line = Pace(), 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def on_step_end(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Log a line now and then: trials that run, the best value, and the time left."""
        now = time.monotonic()
        self.next_line = self.next_line or now + FIRST_LINE_S
        if now >= self.next_line:
            self.next_line = now + BETWEEN_LINES_S
            logger.info(self._line(trials))

    def _line(self, trials: list[Trial]) -> str:
        running = [one for one in trials if one.status == Trial.RUNNING]
        epochs = [one.last_result.get(EPOCH, 0) for one in running]
        done = self.count() + sum(epochs) / self.training.epochs
        said = f"{self.count()} of {self.total} trials have ended, {len(running)} run"
        if running:
            said += f" (epoch {', '.join(f'{one:g}' for one in epochs)} of {self.training.epochs})"
        if values := [value for value in map(self._best, trials) if value is not None]:
            said += f"; best {self.metric.replace('/', ' ')} so far {100 * max(values):.2f}"
        if (left := self.pace.seconds_left(done, self.total)) is not None:
            said += f"; at most about {left:.0f} s left"
        return said

    def _best(self, trial: Trial) -> float | None:
        value = trial.metric_analysis.get(self.metric, {}).get("max")
        return None if value is None else float(value)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """Let a trial whose process did not die be started again but once."""
        if _message_of(self.folder, name_of(trial)).exists():
            trial.run_metadata.num_failures = trial.max_failures

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """Record a trial that finished or was stopped early."""
        value = self._best(trial)
        reached = "" if value is None else f"{self.metric.replace('/', ' ')} {100 * value:.2f}, "
        self._end(name_of(trial), trial.last_result.get(SUMMARY, STOPPED_EARLY), reached)
        self.on_end(trials, trial, "FINISHED")

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
        self._end(name_of(trial), f"{FAILED}{error}")
        self.on_end(trials, trial, "FAILED")

    def _end(self, name: str, end: str, reached: str = "") -> None:
        is_repeated = end.startswith(FAILED) and end.removeprefix(FAILED) in self.errors().values()
        (self.folder / name).write_text(end)
        if not is_repeated:
            logger.info("%d/%d %s: %s%s", self.count(), self.total, name, reached, end)

    def count(self) -> int:
        """Return how many trials have ended."""
        return len(list(self.folder.glob("[!.]*")))

    def forget_failures(self) -> None:
        """Forget the failures of trials, so that these count as not ended."""
        for name in self.errors():
            (self.folder / name).unlink()
        for file in self.folder.glob(".*"):
            file.unlink()

    def out_of_time(self, names: Iterable[str]) -> None:
        """Record the trials that the sweep's time limit stopped."""
        for name in names:
            if not (self.folder / name).exists():
                self._end(name, OUT_OF_TIME)

    def by_trial(self) -> dict[str, str]:
        """Return how trials ended, one line each, by name."""
        return {file.name: file.read_text() for file in sorted(self.folder.glob("[!.]*"))}

    def errors(self) -> dict[str, str]:
        """Return the errors of failed trials, one line each, by name."""
        ends = self.by_trial().items()
        return {name: end.removeprefix(FAILED) for name, end in ends if end.startswith(FAILED)}


class Outcomes(tune.Callback):
    """Keeps the best validation of each candidate, and the seconds that all have taken."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory, self.folder = directory, directory.path / "outcomes"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.begin({})

    def begin(self, names: Mapping[str, str]) -> None:
        """Expect trials, by name, of the candidates ``names``."""
        self.names, self.since = names, time.monotonic() - self.used_seconds

    @property
    def used_seconds(self) -> float:
        """Seconds that all trials have taken."""
        return float(self.directory.notes.get("used_seconds", 0.0))

    def note_time(self) -> None:
        """Note how long trials have run by now."""
        self.directory.note(used_seconds=time.monotonic() - self.since)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        """Keep a trial's validation, if it is the best or the last one."""
        name, is_last = self.names[name_of(trial)], SUMMARY in result
        now = Outcome(
            result[f"{VALIDATION}P@1"],
            result[f"{VALIDATION}R@10"],
            result[EPOCH],
            result["time_total_s"],
            is_last,
        )
        before = self.read().get(name, now)
        best = max(before, now, key=lambda one: (one.finished, one.value))
        self.write(name, replace(best, epochs=now.epochs, seconds=now.seconds), is_last)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """Keep that a trial has finished or was stopped."""
        name = self.names[name_of(trial)]
        found = self.read()
        if name in found:
            self.write(name, found[name], True)
        self.note_time()

    def read(self) -> dict[str, Outcome]:
        """Return the outcomes so far, by candidate."""
        return {
            name: Outcome(**{key: value for key, value in kept.items() if key != "ended"})
            for name, kept in self._all().items()
        }

    def ended(self) -> set[str]:
        """Return the candidates that have ended."""
        return {name for name, kept in self._all().items() if kept["ended"]}

    def _all(self) -> dict[str, dict[str, Any]]:
        files = self.folder.glob("[!.]*.json")
        return {file.stem: json.loads(file.read_text()) for file in files}

    def write(self, name: str, outcome: Outcome, has_ended: bool) -> None:
        """Keep a candidate's outcome."""
        with whole_file(self.folder / f"{name}.json") as aside:
            aside.write_text(json.dumps({**asdict(outcome), "ended": has_ended}))
