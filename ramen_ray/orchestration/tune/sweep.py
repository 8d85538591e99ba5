"""Sweep over settings with Ray Tune: sample, train, stop bad trials early, resume after a kill."""

import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from ray import tune
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

from ramen_ray.config import Positive, PositiveFloat, RunConfig, Section, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.run.checks import check_config
from ramen_ray.orchestration.run.directory import (
    Identity,
    RunDirectory,
    RunError,
    deciding_settings,
    differences,
)
from ramen_ray.orchestration.run.start import (
    SETTINGS,
    check_meanwhile,
    identity_of,
    make_ready,
    resolved,
)
from ramen_ray.orchestration.run.workers import VALIDATION
from ramen_ray.orchestration.tune.records import OUT_OF_TIME, Records
from ramen_ray.orchestration.tune.search_space import Space, check_space, grid, own_values
from ramen_ray.orchestration.tune.trials import (
    fit_trials,
    halving,
    new_tuner,
    num_at_once,
    parent_run,
    trainable_runs,
)
from ramen_ray.reports.sweep_report import parameter_importances, write_sweep_plots
from ramen_ray.reports.trials import TrialRecord, describe_sweep, write_sweep_table
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

TUNE_FOLDER = "tune"
SWEEP_FORMAT = 6  # of what Tune pickles; a sweep of another format cannot be resumed


class SweepConfig(Section):
    """How to sweep."""

    space: str = "regularization"
    """The search space: a function of tune_spaces/."""
    num_samples: Positive = 16
    """Number of trials. The first takes the configuration's own values, if the space has them."""
    search: Literal["tpe", "random", "grid"] = "tpe"
    """Optuna's tree of Parzen estimators; random values; or three values of every setting, in all
    combinations, whatever num_samples is."""
    stop_early: bool = True
    """Stop trials that lag behind the others after the same number of epochs (ASHA)."""
    grace_epochs: Positive = 2
    """Epochs that every trial gets before it may be stopped."""
    time_budget: PositiveFloat | None = None
    """Seconds after which the sweep ends."""
    at_once: Positive | None = None
    """Trials that train at once; None for as many as the current machines have room for, so set it
    if an autoscaler adds more."""


@dataclass(frozen=True)
class SweepResult:
    """The trials, best first; the command that trains with the best one's settings; the report."""

    trials: list[TrialRecord]
    command: str
    report: Path  # folder of the table and plots
    run: Run  # the parent of all trials' runs in MLflow


def sweep(
    config: RunConfig, settings: SweepConfig, space: Space, command: Callable[[RunConfig], str]
) -> SweepResult:
    """Sweep over ``space`` around ``config``, or resume the same sweep.

    Resuming keeps finished trials and tries failed ones again. Every trial is a run made by
    :func:`ramen_ray.orchestration.run.fit.fit`, and a child of the sweep's run in MLflow. The
    selection metric on the validation split decides. ``command`` returns the command that trains
    with a configuration.

    Raises:
        ConfigError, DatasetError, EncoderError, ClusterError, TrackingError: the space, the input,
            the cluster or the store is not usable; nothing has been trained.
        RunError: another sweep has the name, another process is running the sweep, or no trial has
            been validated.
    """
    config = resolved(config)
    dataset = Dataset(config.dataset)
    made_from = identity_of(config, dataset)
    check_config(config, dataset)
    distributions = check_space(config, space, dataset)
    plan = _plan(config, settings, distributions, dataset)
    key = short_hash(json.dumps(plan, sort_keys=True))
    name = config.name or joined_name(dataset.name, settings.space, key)
    directory = RunDirectory(Path(config.output) / "sweeps" / name)
    if changed := differences(directory.notes.get("plan", plan), plan):
        raise RunError(f"{directory.path} holds another sweep: {changed}; choose another name")
    with parent_run(directory, config, made_from) as run:
        directory.note(plan=plan)
        run.log_parameters(settings.model_dump(), {"dataset": dataset.name})
        own = Sweep(config, settings, dict(space), distributions, directory, run, command)
        return own.train(made_from)


def _plan(
    config: RunConfig,
    settings: SweepConfig,
    distributions: Mapping[str, BaseDistribution],
    dataset: Dataset,
) -> dict[str, Any]:
    """Return what must be the same to resume a sweep, as JSON values."""
    plan = {
        "sweep format": SWEEP_FORMAT,
        **deciding_settings(config),
        "dataset": dataset.fingerprint,
        **settings.model_dump(exclude={"at_once"}),
        **{f"sampler of {key}": str(sampled) for key, sampled in distributions.items()},
    }
    return dict(json.loads(json.dumps(plan)))


@dataclass(frozen=True)
class Sweep:
    """A sweep in progress, and what it shows of its trials."""

    config: RunConfig
    settings: SweepConfig
    space: Space
    distributions: Mapping[str, BaseDistribution]  # Optuna's, of all tuned settings
    directory: RunDirectory
    run: Run  # the sweep's own in MLflow
    command: Callable[[RunConfig], str]  # returns the command that trains with a configuration

    def train(self, made_from: Identity) -> SweepResult:
        """Run all trials and report on them."""
        config = self.config

        def config_of(params: dict[str, Any], trial: str) -> RunConfig:
            return overlay(config, {**params, "name": self._name_of_run(trial)})

        # what all trials are made from, whatever is tuned
        fixed = {part: of for part, of in made_from.items() if SETTINGS.get(part) not in self.space}
        records, at_once = self.records, self.settings.at_once or num_at_once(config.workers)
        runnable = trainable_runs(config_of, lambda _: fixed, self.run, records.folder, at_once)
        if config.workers.num_workers == 1:
            make_ready(config)  # most trials need nothing else then
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # an interrupted trial reports the epochs since its last checkpoint again
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
            results = fit_trials(lambda: self._tuner(runnable, records), self.run)
        if results is None:
            raise KeyboardInterrupt
        if records.errors():
            check_meanwhile(made_from, identity_of(config, Dataset(config.dataset)))
        records.settle({Path(one.path).name for one in results})
        trials = self.trials()
        if not trials or trials[0].value is None:
            ends = "; ".join(one.end for one in trials) or f"{OUT_OF_TIME} before one began"
            raise RunError(f"no trial has been validated: {ends}")
        self.show(trials)
        return SweepResult(trials, self.command_of(trials[0]), self.report, self.run)

    @cached_property
    def records(self) -> Records:
        """What is kept of the trials."""
        folder = self.directory.path / "trials"
        return Records(folder, self.config.training, on_end=self.on_end, total=self._num_trials())

    @property
    def report(self) -> Path:
        """Folder of the table and plots."""
        return self.directory.path / "report"

    def trials(self) -> list[TrialRecord]:
        """Return the trials that have begun, best first."""
        found = [
            replace(one, mlflow_run_id=self._directory_of(name).mlflow_run_id)
            for name, one in self.records.all().items()
        ]
        return sorted(found, key=lambda one: (one.value is None, -(one.value or 0), one.name))

    def command_of(self, trial: TrialRecord) -> str:
        """Return the command that trains with a trial's settings."""
        return self.command(overlay(self.config, {**trial.params, "name": None}))

    def show(self, trials: list[TrialRecord]) -> None:
        """Log the table of trials, plots, importances and the best command in MLflow."""
        best, metric = trials[0], VALIDATION + self.config.training.selection_metric
        command = None if best.value is None else self.command_of(best)
        write_sweep_table(self.report, trials, metric, command)
        write_sweep_plots(self.report, trials, self.distributions, metric)
        self.run.log_artifacts(self.report)
        self.run.describe(describe_sweep(trials, metric, command))
        if best.value is not None:
            importances = parameter_importances(trials, self.distributions)
            named = {f"importance/{key}": share for key, share in importances.items()}
            named[f"best/{metric}"] = best.value
            self.run.log_metrics(named, self.records.num_ended())

    def on_end(self, ended: TrialRecord, status: str) -> None:
        """Show a trial that has ended, and end its MLflow run, which others may have stopped."""
        try:
            if (run_id := self._directory_of(ended.name).mlflow_run_id) is not None:
                Run(self.run.uri, run_id).close_if_open(status)
            self.show(self.trials())
        except Exception as error:  # an error here would fail the trial; the end shows all again
            logger.warning("%s is not shown in MLflow yet: %s", ended.name, error)

    def _name_of_run(self, trial: str) -> str:
        return joined_name(self.directory.name, trial)

    def _directory_of(self, trial: str) -> RunDirectory:
        return RunDirectory.of(self.config.output, self._name_of_run(trial))

    def _num_trials(self) -> int:
        if self.settings.search == "grid":
            return math.prod(map(len, grid(self.distributions).values()))
        return self.settings.num_samples

    def _tuner(self, runnable: Any, records: Records) -> tune.Tuner:
        """Return a tuner that starts the sweep, or resumes it and retries failed trials."""
        settings, folder = self.settings, self.directory.path / TUNE_FOLDER
        is_grid, space = settings.search == "grid", dict(self.space)
        if is_grid:
            values = grid(self.distributions)
            space = {key: tune.grid_search(of) for key, of in values.items()}
        if tune.Tuner.can_restore(str(folder)):
            records.forget_failures()
            return tune.Tuner.restore(
                str(folder),
                runnable,
                resume_unfinished=True,
                resume_errored=True,
                param_space=space,  # in case a full disk has kept Tune from noting what it drew
            )
        training = self.config.training
        decides = {"metric": VALIDATION + training.selection_metric, "mode": "max"}
        stops = halving(training.epochs, settings.grace_epochs) if settings.stop_early else None
        how = {
            **decides,
            "search_alg": self._search_algorithm(decides),
            "scheduler": stops,
            "num_samples": 1 if is_grid else settings.num_samples,
            "time_budget_s": settings.time_budget,
        }
        return new_tuner(runnable, space, folder, self.config.workers, records, how)

    def _search_algorithm(self, decides: Mapping[str, str]) -> Any:
        own = own_values(self.config, self.space)
        seed, points = self.config.seed, None if own is None else [own]
        match self.settings.search:
            case "tpe":
                sampler = TPESampler(seed=seed)
                return OptunaSearch(sampler=sampler, points_to_evaluate=points, **decides)
            case "random":
                return BasicVariantGenerator(points_to_evaluate=points, random_state=seed)
            case "grid":
                return BasicVariantGenerator()
