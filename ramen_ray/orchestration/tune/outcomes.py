"""What has become of a search's candidates, in files that outlive its process."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.workers import VALIDATION
from ramen_ray.orchestration.tune.ends import EPOCH, SUMMARY, name_of
from ramen_ray.reports.recommendation import Outcome


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
