"""A sweep's progress, reported in MLflow: its trials, best first, and what they show."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution
from ray import tune
from ray.tune.experiment import Trial

from ramen_ray.config import RunConfig, overlay
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.workers import VALIDATION
from ramen_ray.orchestration.tune.ends import name_of
from ramen_ray.reports.sweep_report import (
    SweepTrial,
    describe_sweep,
    parameter_importances,
    write_sweep_plots,
    write_sweep_table,
)
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepProgress:
    """Sorts a sweep's trials, and shows them."""

    config: RunConfig
    # Optuna's distributions of all tuned settings, by dotted key
    distributions: Mapping[str, BaseDistribution]
    directory: RunDirectory
    run: Run  # the sweep's run in MLflow
    command: Callable[[RunConfig], str]  # returns the command that trains with a configuration

    @property
    def metric(self) -> str:
        """The metric that decides, by the name in trials' reports."""
        return VALIDATION + self.config.training.selection_metric

    @property
    def ends(self) -> Path:
        """Folder with a file for each ended trial."""
        return self.directory.path / "ends"

    @property
    def report(self) -> Path:
        """Folder of the table and plots."""
        return self.directory.path / "report"

    def rank_running(self, trials: Iterable[Trial]) -> list[SweepTrial]:
        """Return the trials of a sweep in progress, best first."""
        return self._in_order(
            (name_of(one), one.config, one.metric_analysis.get(self.metric, {}).get("max"))
            for one in trials
        )

    def rank_results(self, results: Iterable[tune.Result]) -> list[SweepTrial]:
        """Return the trials of a sweep that has ended, best first."""
        return self._in_order(
            (Path(one.path).name, _params(one), _best(one.metrics_dataframe, self.metric))
            for one in results
        )

    def _in_order(
        self, found: Iterable[tuple[str, Mapping[str, Any], float | None]]
    ) -> list[SweepTrial]:
        """Sort the (name, params, value) of trials, with how each ended."""
        trials = [
            SweepTrial(
                name,
                dict(params),
                value,
                (self.ends / name).read_text() if (self.ends / name).exists() else "",
                self._mlflow_run_of(name),
            )
            for name, params, value in found
        ]
        return sorted(trials, key=lambda t: (math.inf if t.value is None else -t.value, t.name))

    def _mlflow_run_of(self, name: str) -> str | None:
        directory = RunDirectory.of(self.config.output, joined_name(self.directory.name, name))
        return directory.mlflow_run_id

    def command_of(self, trial: SweepTrial) -> str:
        """Return the command that trains with a trial's settings."""
        return self.command(overlay(self.config, {**trial.params, "name": None}))

    def show(self, trials: list[SweepTrial]) -> None:
        """Log the table of trials, plots, importances and the best command in MLflow."""
        best = trials[0]
        command = None if best.value is None else self.command_of(best)
        write_sweep_table(self.report, trials, self.metric, command)
        write_sweep_plots(self.report, trials, self.distributions, self.metric)
        self.run.log_artifacts(self.report)
        self.run.describe(describe_sweep(trials, self.metric, command))
        if best.value is not None:
            importances = parameter_importances(trials, self.distributions)
            named = {f"importance/{key}": share for key, share in importances.items()}
            named[f"best/{self.metric}"] = best.value
            ended = sum(bool(trial.end) for trial in trials)
            self.run.log_metrics(named, ended)

    def on_end(self, trials: list[Trial], ended: Trial, status: str) -> None:
        """Show a trial that has ended, and end its MLflow run, which others may have stopped."""
        name = name_of(ended)
        try:
            if (run_id := self._mlflow_run_of(name)) is not None:
                Run(self.run.uri, run_id).close_if_open(status)
            self.show(self.rank_running(trials))
        except Exception as error:  # an error here would fail the trial; the end shows all again
            logger.warning("%s is not shown in MLflow yet: %s", name, error)


def _params(result: tune.Result) -> dict[str, Any]:
    """Return a trial's sampled settings: none before it starts; Tune has none for a failed one."""
    file = Path(result.path) / "params.json"
    return dict(result.config or (json.loads(file.read_text()) if file.exists() else {}))


def _best(history: Any, metric: str) -> float | None:
    if history is None or metric not in history or not history[metric].notna().any():
        return None
    return float(history[metric].max())
