"""Sweep over settings with Ray Tune: sample, train, stop bad trials early, resume after a kill."""

import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import TPESampler
from ray import tune
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Domain

from ramen_ray.config import (
    ConfigError,
    RunConfig,
    flatten,
    overlay,
)
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.run.checks import check_config
from ramen_ray.orchestration.run.directory import (
    Identity,
    RunDirectory,
    RunError,
    deciding_settings,
)
from ramen_ray.orchestration.run.made_from import (
    SETTING_OF,
    check_meanwhile,
    identity_of,
    make_ready,
    resolved,
)
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.orchestration.tune.records import OUT_OF_TIME, Records
from ramen_ray.orchestration.tune.settings import SWEEPS, SweepConfig
from ramen_ray.orchestration.tune.trials import Trials, halving, parent_run
from ramen_ray.reports.search_report import TrialRecord, describe_sweep, write_sweep_report
from ramen_ray.tracking.runs import Run, prefixed

logger = logging.getLogger(__name__)

TUNE_FOLDER = "tune"
SWEEP_FORMAT = 6  # of what Tune pickles; a sweep of another format cannot be resumed
POINTS_OF_A_GRID = 3

Space = Mapping[str, Domain]  # samplers by dotted key of the configuration


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

    Resuming keeps finished trials and tries failed ones again. Every trial is a run, and a child of
    the sweep's run in MLflow; the selection metric on the validation split decides. ``command``
    returns the command that trains with a configuration.

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
    plan = {  # what must be so to resume a sweep
        "sweep format": SWEEP_FORMAT,
        **deciding_settings(config),
        "dataset": dataset.fingerprint,
        **settings.model_dump(exclude={"at_once"}),
        **{f"sampler of {key}": str(sampled) for key, sampled in distributions.items()},
    }
    key = short_hash(json.dumps(plan, sort_keys=True))
    name = config.name or joined_name(dataset.name, settings.space, key)
    directory = RunDirectory.of(config.output, name, SWEEPS)
    directory.refuse_another(plan, "sweep")
    with parent_run(directory, config, made_from) as run:
        directory.note(plan=plan)
        run.log_parameters(settings.model_dump(), {"dataset": dataset.name})
        own = Sweep(config, settings, dict(space), distributions, directory, run, command)
        return own.train(made_from)


def check_space(config: RunConfig, space: Space, dataset: Dataset) -> dict[str, BaseDistribution]:
    """Check that a sweep can draw from a space, and that training accepts every choice and bound.

    Returns Optuna's distributions of all settings.

    Raises:
        ConfigError, DatasetError, EncoderError: the space is empty, Optuna does not know a sampler,
            or a key does not fit the configuration or a value training.
    """
    if not space:
        raise ConfigError("the search space is empty: nothing would be tuned")
    distributions: dict[str, BaseDistribution] = {}
    for key, domain in space.items():
        try:
            distributions[key] = OptunaSearch.convert_search_space({key: domain})[key]
        except (KeyError, ValueError):  # a plain value, or a sampler that Optuna lacks
            raise ConfigError(
                f"{key}: a search space needs choices, or a sampler with bounds (tune.choice, "
                f"tune.uniform, tune.loguniform, tune.randint, tune.lograndint or tune.quniform)"
            ) from None
    values = grid(distributions)
    # the fewest whole settings that use every value of each key
    for row in range(max(map(len, values.values()))):
        setting = {key: of[row % len(of)] for key, of in values.items()}
        check_config(overlay(config, setting), dataset)
    return distributions


def own_values(config: RunConfig, space: Space) -> dict[str, Any] | None:
    """Return the configuration's own values of tuned settings; None if the space lacks one."""
    own = flatten(config) | {f"base.{name}": of for name, of in asdict(config.base.parts).items()}
    has_all = all(key in own and domain.is_valid(own[key]) for key, domain in space.items())
    return {key: own[key] for key in space} if has_all else None


def grid(distributions: Mapping[str, BaseDistribution]) -> dict[str, list[Any]]:
    """Return each setting's values in a grid: all categories, or evenly spaced between bounds."""
    values: dict[str, list[Any]] = {}
    for key, one in distributions.items():
        if isinstance(one, CategoricalDistribution):
            values[key] = list(one.choices)
            continue
        low, high, step, is_log = (getattr(one, name) for name in ("low", "high", "step", "log"))
        points = (np.geomspace if is_log else np.linspace)(low, high, POINTS_OF_A_GRID)
        if step:
            points = low + step * np.round((points - low) / step)
        values[key] = list(dict.fromkeys(points.astype(type(low)).tolist()))
    return values


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
        """Run all trials, or go on with them and try failed ones again, and report on them."""
        config, settings, records = self.config, self.settings, self.records
        name, tuned = self.directory.name, self.space
        # what all trials are made from, whatever is tuned
        fixed = {part: of for part, of in made_from.items() if SETTING_OF.get(part) not in tuned}
        trials = Trials(
            lambda params, trial: overlay(config, {**params, "name": joined_name(name, trial)}),
            lambda _: fixed,
            self.run,
            config.workers,
            records,
            settings.at_once,
        )
        if config.workers.num_workers == 1:
            make_ready(config)  # most trials need nothing else then
        space = dict(self.space)
        if settings.search == "grid":
            values = grid(self.distributions)
            space = {key: tune.grid_search(of) for key, of in values.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # an interrupted trial reports the epochs since its last checkpoint again
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
            results = trials.fit(space, self.directory.path / TUNE_FOLDER, self._how_to_search())
        if records.errors():
            now = identity_of(config, Dataset(config.dataset))
            check_meanwhile(made_from, now, config.dataset)
        records.settle({Path(one.path).name for one in results})
        found = self.trials()
        if not found or found[0].value is None:
            ends = "; ".join(one.end for one in found) or f"{OUT_OF_TIME} before one began"
            raise RunError(f"no trial has been validated: {ends}")
        self.show(found)
        return SweepResult(found, self.command_of(found[0]), self.report, self.run)

    def _how_to_search(self) -> dict[str, Any]:
        """Return the settings of Tune's TuneConfig."""
        settings, training, seed = self.settings, self.config.training, self.config.seed
        decides = {"metric": VALIDATION + training.selection_metric, "mode": "max"}
        own = own_values(self.config, self.space)
        first: dict[str, Any] = {"points_to_evaluate": None if own is None else [own]}
        match settings.search:
            case "tpe":
                drawn: Any = OptunaSearch(sampler=TPESampler(seed=seed), **first, **decides)
            case "random":
                drawn = BasicVariantGenerator(random_state=seed, **first)
            case "grid":
                drawn = BasicVariantGenerator()
        stops = halving(settings.grace_epochs) if settings.stop_early else None
        return {
            **decides,
            "search_alg": drawn,
            "scheduler": stops,
            "num_samples": 1 if settings.search == "grid" else settings.num_samples,
            "time_budget_s": settings.time_budget,
        }

    @cached_property
    def records(self) -> Records:
        """What is kept of the trials."""
        total = self.settings.num_samples
        if self.settings.search == "grid":
            total = math.prod(map(len, grid(self.distributions).values()))
        folder = self.directory.path / "trials"
        return Records(folder, self.config.training, on_end=self.on_end, total=total)

    @property
    def report(self) -> Path:
        """Folder of the table and plots."""
        return self.directory.path / "report"

    def trials(self) -> list[TrialRecord]:
        """Return the trials that have begun, best first."""
        found = [
            replace(one, mlflow_run_id=self._run_of(name).mlflow_run_id)
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
        shares = write_sweep_report(self.report, trials, self.distributions, metric, command)
        self.run.log_artifacts(self.report)
        self.run.describe(describe_sweep(trials, metric, command))
        if best.value is not None:
            named = {**prefixed("importance/", shares), f"best/{metric}": best.value}
            self.run.log_metrics(named, self.records.num_ended())

    def on_end(self, ended: TrialRecord, status: str) -> None:
        """Show a trial that has ended, and end its MLflow run, which others may have stopped."""
        try:
            if (run_id := self._run_of(ended.name).mlflow_run_id) is not None:
                Run(self.run.uri, run_id).close_if_open(status)
            self.show(self.trials())
        except Exception as error:  # an error here would fail the trial; the end shows all again
            logger.warning("%s is not shown in MLflow yet: %s", ended.name, error)

    def _run_of(self, trial: str) -> RunDirectory:
        return RunDirectory.of(self.config.output, joined_name(self.directory.name, trial))
