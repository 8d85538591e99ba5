"""Search for settings with Ray Tune: propose, train, stop what lags, go on after a kill."""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.samplers import TPESampler
from ray import tune
from ray.train import Checkpoint
from ray.tune.experiment import Trial
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Domain

from ramen_ray.config import (
    Positive,
    PositiveFloat,
    RunConfig,
    Section,
    experiment_hash,
    overlay,
)
from ramen_ray.data.dataset import Dataset
from ramen_ray.orchestration.cluster import check_resources, start_ray
from ramen_ray.orchestration.final_evaluation import VALIDATION
from ramen_ray.orchestration.run_directory import RunDirectory, RunError
from ramen_ray.orchestration.search_space import Space, check_space, grid, own_values
from ramen_ray.orchestration.train import check_config, with_absolute_paths
from ramen_ray.orchestration.trials import (
    TOLD,
    Ends,
    name_of,
    num_at_once,
    quiet_tune,
    train_in_trial,
    trainable,
)
from ramen_ray.tracking.runs import (
    close_run,
    close_run_if_open,
    log_artifacts,
    log_metrics,
    log_parameters,
    open_run,
    tracking_uri,
)
from ramen_ray.tracking.sweep_report import (
    SweepTrial,
    parameter_importances,
    write_sweep_plots,
    write_sweep_table,
)

REDUCTION_FACTOR = 3
EPOCH = "epoch"
TUNE_FOLDER = "tune"


class SweepConfig(Section):
    """How to search."""

    space: str = "regularization"
    """What is searched: a function of tune_spaces/."""
    num_samples: Positive = 16
    """Trials. The first takes the configuration's own values, as far as the space holds them."""
    search: Literal["tpe", "random", "grid"] = "tpe"
    """Optuna's tree of Parzen estimators; random values; or three values of every setting, in all
    combinations, however many num_samples."""
    stop_early: bool = True
    """End trials that lag behind others after as many epochs (ASHA)."""
    grace_epochs: Positive = 2
    """Epochs that every trial gets before it may be ended."""
    time_budget: PositiveFloat | None = None
    """Seconds after which the search ends."""


@dataclass(frozen=True)
class SweepResult:
    """What a search leaves behind.

    Attributes:
        trials: the best first.
        command: trains with the best trial's settings.
        report: folder of table and plots.
        tracking_uri: the MLflow store.
        mlflow_run_id: the run in it that all trials are part of.
    """

    trials: list[SweepTrial]
    command: str
    report: Path
    tracking_uri: str
    mlflow_run_id: str


def sweep(
    config: RunConfig, settings: SweepConfig, space: Space, command: Callable[[RunConfig], str]
) -> SweepResult:
    """Search ``space`` around ``config``, or go on with the same search that was cut off.

    Every trial is a run as :func:`ramen_ray.orchestration.train.fit` makes it, and part of the
    search's MLflow run. The selection metric on the validation split decides.

    Args:
        config: what is tuned.
        settings: how to search.
        space: samplers by dotted key.
        command: spells the command that trains with a configuration.

    Raises:
        ConfigError, DatasetError, EncoderError, ClusterError, TrackingError: the space, the input,
            the cluster or the store is not usable; nothing has been trained.
        RunError: no trial has been validated.
    """
    config = with_absolute_paths(config)
    dataset, output = Dataset(config.dataset), Path(config.output)
    check_space(config, space)
    if settings.search == "grid":
        grid(space)
    check_config(config, dataset)
    name = config.name or _name(config, settings, space, dataset)
    directory = RunDirectory(output / "sweeps" / name)
    directory.path.mkdir(parents=True, exist_ok=True)
    start_ray(show_workers=False)  # trials that are ended early die loudly
    check_resources(config.workers)
    uri = tracking_uri(output)
    known = directory.facts.get("mlflow_run_id")
    run_id = open_run(uri, config.experiment, name, output, known)
    directory.note(mlflow_run_id=run_id)
    log_parameters(uri, run_id, settings.model_dump(), {"dataset": dataset.name})
    search = Search(config, settings, dict(space), directory, uri, run_id, command)
    try:
        result = search.run()
    except BaseException as error:
        close_run(uri, run_id, "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise
    close_run(uri, run_id, "FINISHED")
    return result


def _name(config: RunConfig, settings: SweepConfig, space: Space, dataset: Dataset) -> str:
    what = f"{experiment_hash(config, dataset.fingerprint)}{settings}{sorted(space)}"
    digest = hashlib.blake2b(what.encode(), digest_size=4).hexdigest()
    return f"{dataset.name}-{settings.space}-{digest}"


@dataclass(frozen=True)
class Search:
    """A search under way: what is searched, and where its results go."""

    config: RunConfig
    settings: SweepConfig
    space: dict[str, Domain]
    directory: RunDirectory
    tracking_uri: str
    mlflow_run_id: str
    command: Callable[[RunConfig], str]

    @property
    def metric(self) -> str:
        """The metric that decides, as trials report it."""
        return VALIDATION + self.config.training.selection_metric

    @property
    def report(self) -> Path:
        """Folder of table and plots."""
        return self.directory.path / "report"

    def run(self) -> SweepResult:
        """Search to the end, and sum up."""
        ends = Ends(self.directory.path / "ends", self._num_trials())
        runnable = trainable(
            _train_one,
            config=self.config,
            sweep=self.directory.name,
            parent_run_id=self.mlflow_run_id,
            ends=ends,
        )
        path = str(self.directory.path / TUNE_FOLDER)
        if tune.Tuner.can_restore(path):
            tuner = tune.Tuner.restore(path, runnable, resume_unfinished=True)
        else:
            tuner = self._tuner(runnable, [ends, _Live(self), JsonLoggerCallback()])
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with quiet_tune(), warnings.catch_warnings():
            # a trial that was cut off reports the epochs since its last checkpoint again
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
            results = tuner.fit()
        if results.num_terminated + results.num_errors < len(results):
            raise KeyboardInterrupt  # which Tune takes for a pause
        for name in ends.out_of_time(Path(one.path).name for one in results):
            self.close(name, "KILLED")
        trials = self._trials(
            (Path(one.path).name, _params(one), _best(one.metrics_dataframe, self.metric))
            for one in results
        )
        if not trials or trials[0].value is None:
            raise RunError(f"no trial has been validated: {'; '.join(ends.told().values())}")
        best = self.show(trials)
        distributions = OptunaSearch.convert_search_space(self.space)
        write_sweep_plots(self.report, trials, distributions, self.metric)
        log_artifacts(self.tracking_uri, self.mlflow_run_id, self.report)
        importances = parameter_importances(trials, distributions)
        named = {f"importance/{key}": share for key, share in importances.items()}
        log_metrics(self.tracking_uri, self.mlflow_run_id, named)
        return SweepResult(trials, best, self.report, self.tracking_uri, self.mlflow_run_id)

    def show(self, trials: list[SweepTrial]) -> str:
        """Put the table of trials and the best command into MLflow; returns the command."""
        best = trials[0]
        changes = {**best.params, "name": None}
        command = self.command(overlay(self.config, changes))
        write_sweep_table(self.report, trials, self.metric, command)
        log_artifacts(self.tracking_uri, self.mlflow_run_id, self.report)
        if best.value is not None:
            ended = sum(bool(trial.end) for trial in trials)
            named = {f"best/{self.metric}": best.value}
            log_metrics(self.tracking_uri, self.mlflow_run_id, named, ended)
        return command

    def _trials(
        self, found: Iterable[tuple[str, Mapping[str, Any], float | None]]
    ) -> list[SweepTrial]:
        """Put (name, params, value) of trials into order, with what is known of their ends."""
        ends = self.directory.path / "ends"
        trials = [
            SweepTrial(
                name,
                dict(params),
                value,
                (ends / name).read_text() if (ends / name).exists() else "",
                self._mlflow_run_of(name),
            )
            for name, params, value in found
        ]
        return sorted(trials, key=lambda t: (math.inf if t.value is None else -t.value, t.name))

    def of_tune(self, trials: Iterable[Trial]) -> list[SweepTrial]:
        """Return Tune's trials, the best first."""
        return self._trials(
            (name_of(one), one.config, one.metric_analysis.get(self.metric, {}).get("max"))
            for one in trials
        )

    def _mlflow_run_of(self, name: str) -> str | None:
        runs = self.directory.path.parent.parent / "runs"
        facts = RunDirectory(runs / f"{self.directory.name}-{name}").facts
        return facts.get("mlflow_run_id")

    def close(self, name: str, status: str) -> None:
        """End the MLflow run of a trial that was ended from outside."""
        run_id = self._mlflow_run_of(name)
        if run_id is not None:
            close_run_if_open(self.tracking_uri, run_id, status)

    def _num_trials(self) -> int:
        if self.settings.search == "grid":
            return math.prod(len(values) for values in grid(self.space).values())
        return self.settings.num_samples

    def _tuner(self, runnable: Any, callbacks: list[tune.Callback]) -> tune.Tuner:
        settings, training = self.settings, self.config.training
        is_grid = settings.search == "grid"
        space: dict[str, Any] = self.space
        if is_grid:
            space = {key: tune.grid_search(values) for key, values in grid(self.space).items()}
        decides = {"metric": self.metric, "mode": "max"}
        scheduler = ASHAScheduler(
            time_attr=EPOCH,
            max_t=training.epochs + 1,  # beyond the end, so that it ends none at its last epoch
            grace_period=min(settings.grace_epochs, training.epochs),
            reduction_factor=REDUCTION_FACTOR,
        )
        return tune.Tuner(
            runnable,
            param_space=space,
            tune_config=tune.TuneConfig(
                **decides,
                search_alg=self._search_algorithm(decides),
                scheduler=scheduler if settings.stop_early else None,
                num_samples=1 if is_grid else settings.num_samples,
                max_concurrent_trials=num_at_once(self.config.workers),
                time_budget_s=settings.time_budget,
                trial_name_creator=name_of,
                trial_dirname_creator=name_of,
            ),
            run_config=tune.RunConfig(
                name=TUNE_FOLDER,
                storage_path=str(self.directory.path),
                callbacks=callbacks,
                verbose=0,
            ),
        )

    def _search_algorithm(self, decides: Mapping[str, str]) -> Any:
        own = own_values(self.config, self.space)
        seed, points = self.config.seed, [own] if own else None
        match self.settings.search:
            case "tpe":
                sampler = TPESampler(seed=seed)
                return OptunaSearch(sampler=sampler, points_to_evaluate=points, **decides)
            case "random":
                return BasicVariantGenerator(points_to_evaluate=points, random_state=seed)
            case "grid":
                return BasicVariantGenerator()


def _params(result: tune.Result) -> dict[str, Any]:
    """Return what a trial sampled: nothing if it has not begun.

    Tune's result of a failed one that was restored has it not.
    """
    file = Path(result.path) / "params.json"
    return dict(result.config or (json.loads(file.read_text()) if file.exists() else {}))


def _best(history: Any, metric: str) -> float | None:
    """Return the best value in a trial's table of reports."""
    if history is None or metric not in history or not history[metric].notna().any():
        return None
    return float(history[metric].max())


class _ReportValidations(TuneReportCallback):
    """Tells Tune of the reports that hold the metric: not of checkpoints amid an epoch."""

    def __init__(self, metric: str) -> None:
        super().__init__()
        self.metric = metric

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        if self.metric in metrics[0]:
            super().after_report(run_context, metrics, checkpoint)


class _Live(tune.Callback):
    """Shows in MLflow what is known whenever a trial has ended."""

    def __init__(self, search: Search) -> None:
        self.search = search

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._show(trials, trial, "FINISHED")

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._show(trials, trial, "FAILED")

    def _show(self, trials: list[Trial], ended: Trial, status: str) -> None:
        self.search.close(name_of(ended), status)
        self.search.show(self.search.of_tune(trials))


def _train_one(
    params: dict[str, Any], config: RunConfig, sweep: str, parent_run_id: str, ends: Ends
) -> None:
    name = tune.get_context().get_trial_id()
    metric = config.training.selection_metric
    with ends.kept_of(name):
        run = overlay(config, {**params, "name": f"{sweep}-{name}"})
        callback = _ReportValidations(VALIDATION + metric)
        told, result = train_in_trial(run, parent_run_id, [callback])
        reached = result.metrics["trained"]["validation"][metric]
        tune.report({TOLD: told, VALIDATION + metric: reached, EPOCH: run.training.epochs})
