"""Sweep over settings with Ray Tune: sample, train, stop bad trials early, resume after a kill."""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
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
from ramen_ray.idle_settings import refuse_idle
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.run.checks import check_config
from ramen_ray.orchestration.run.directory import (
    Identity,
    RunDirectory,
    RunError,
    deciding_settings,
)
from ramen_ray.orchestration.run.identity import check_meanwhile, identity_of, without_tuned
from ramen_ray.orchestration.run.inputs import edges_to_train, prepared_data, resolved
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.orchestration.tune.settings import SWEEPS, SweepConfig
from ramen_ray.orchestration.tune.trial_log import OUT_OF_TIME, TrialLog, errors_of
from ramen_ray.orchestration.tune.trials import ERRORS, Trials, halving, parent_run
from ramen_ray.reports.search_report import TrialRecord, describe_sweep, write_sweep_report
from ramen_ray.tracking.runs import Run, prefixed, tracking_uri

TUNE_FOLDER = "tune"
SWEEP_FORMAT = 7  # of what Tune pickles; a sweep of another format cannot be resumed
POINTS_OF_A_GRID = 3
BETWEEN_REPORTS_S = 30  # at least; a report of many trials takes seconds

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
        begun = Sweep(config, settings, dict(space), distributions, directory, command)
        return begun.train(dataset, made_from, run)


def check_space(config: RunConfig, space: Space, dataset: Dataset) -> dict[str, BaseDistribution]:
    """Check that a sweep can draw from a space, and that training accepts every choice and bound.

    Returns Optuna's distributions of all settings.

    Raises:
        ConfigError, DatasetError, EncoderError: the space is empty, Optuna does not know a sampler,
            or a key does not fit the configuration or a value training.
    """
    if not space:
        raise ConfigError(
            "the search space is empty: none of its settings acts here, as those of regularisers "
            "do not without a graph; give another --space, or an anchor set a weight"
        )
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
        setting = {key: choices[row % len(choices)] for key, choices in values.items()}
        changed = overlay(config, setting)
        refuse_idle(changed, setting)
        check_config(changed, dataset)
    return distributions


def own_values(config: RunConfig, space: Space) -> dict[str, Any] | None:
    """Return the configuration's own values of tuned settings; None if the space lacks one."""
    parts = {f"base.{name}": part for name, part in asdict(config.base.parts).items()}
    values = flatten(config) | parts
    has_all = all(key in values and domain.is_valid(values[key]) for key, domain in space.items())
    return {key: values[key] for key in space} if has_all else None


def grid(distributions: Mapping[str, BaseDistribution]) -> dict[str, list[Any]]:
    """Return each setting's values in a grid: all categories, or evenly spaced between bounds."""
    values: dict[str, list[Any]] = {}
    for key, drawn in distributions.items():
        if isinstance(drawn, CategoricalDistribution):
            values[key] = list(drawn.choices)
            continue
        low, high, step, is_log = (getattr(drawn, name) for name in ("low", "high", "step", "log"))
        points = (np.geomspace if is_log else np.linspace)(low, high, POINTS_OF_A_GRID)
        if step:
            points = low + step * np.round((points - low) / step)
        values[key] = list(dict.fromkeys(points.astype(type(low)).tolist()))
    return values


@dataclass(eq=False)
class Sweep:
    """A sweep in progress, and what it shows of its trials; plain values, as Tune pickles them."""

    config: RunConfig
    settings: SweepConfig
    space: Space
    distributions: Mapping[str, BaseDistribution]  # Optuna's, of all tuned settings
    directory: RunDirectory
    command: Callable[[RunConfig], str]  # returns the command that trains with a configuration
    shown_at: float = -math.inf  # by the monotonic clock

    def train(self, dataset: Dataset, made_from: Identity, run: Run) -> SweepResult:
        """Run all trials, or go on with them and try failed ones again, and report on them."""
        config = self.config
        settings = self.settings
        space = dict(self.space)
        total = settings.num_samples
        if settings.search == "grid":
            values = grid(self.distributions)
            space = {key: tune.grid_search(choices) for key, choices in values.items()}
            total = math.prod(map(len, values.values()))
        log = TrialLog(
            output=config.output,
            epochs=config.training.epochs,
            decides=(config.training.selection_metric,),
            errors=self.directory.path / ERRORS,
            total=total,
            prefix=self.directory.name,
            on_end=self.show_now_and_again,
        )
        trials = Trials(
            lambda params, trial: overlay(config, {**params, "name": log.run_of(trial)}),
            without_tuned(made_from, self.space),
            run,
            config.workers,
            log,
            settings.at_once,
        )
        if config.workers.num_workers == 1:
            # most trials need nothing else then
            edges_to_train(config, prepared_data(config, dataset))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # an interrupted trial reports the epochs since its last checkpoint again
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
            records = trials.fit(space, self.directory.path / TUNE_FOLDER, self._how_to_search())
        if errors_of(records):
            now = identity_of(config, Dataset(config.dataset))
            check_meanwhile(made_from, now, config.dataset)
        records = best_first(records)
        if not records or records[0].value is None:
            ends = "; ".join(record.end for record in records) or f"{OUT_OF_TIME} before one began"
            raise RunError(f"no trial has been validated: {ends}")
        self.show(records)
        return SweepResult(records, self.command_of(records[0]), self.report, run)

    def _how_to_search(self) -> dict[str, Any]:
        """Return the settings of Tune's TuneConfig."""
        settings = self.settings
        seed = self.config.seed
        decides = {"metric": self.metric, "mode": "max"}
        present = own_values(self.config, self.space)
        first: dict[str, Any] = {"points_to_evaluate": None if present is None else [present]}
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

    @property
    def metric(self) -> str:
        """Name of the metric that decides."""
        return VALIDATION + self.config.training.selection_metric

    @property
    def report(self) -> Path:
        """Folder of the table and plots."""
        return self.directory.path / "report"

    def command_of(self, trial: TrialRecord) -> str:
        """Return the command that trains with a trial's settings."""
        return self.command(overlay(self.config, {**trial.params, "name": None}))

    def show_now_and_again(self, records: list[TrialRecord]) -> None:
        """Show the trials, unless that was done a moment ago."""
        if time.monotonic() - self.shown_at >= BETWEEN_REPORTS_S:
            self.show(best_first(records))
            self.shown_at = time.monotonic()

    def show(self, trials: list[TrialRecord]) -> None:
        """Log the table of trials, best first, plots and the best command in MLflow."""
        best = trials[0]
        run = Run(tracking_uri(Path(self.config.output)), str(self.directory.mlflow_run_id))
        command = None if best.value is None else self.command_of(best)
        shares = write_sweep_report(self.report, trials, self.distributions, self.metric, command)
        run.log_artifacts(self.report)
        run.describe(describe_sweep(trials, self.metric, command))
        if best.value is not None:
            figures = {**prefixed("importance/", shares), f"best/{self.metric}": best.value}
            run.log_metrics(figures, sum(bool(trial.end) for trial in trials))


def best_first(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Sort trials by what decides; those that were never validated are the last."""

    def rank(record: TrialRecord) -> tuple[bool, float, str]:
        return record.value is None, -(record.value or 0), record.name

    return sorted(records, key=rank)
