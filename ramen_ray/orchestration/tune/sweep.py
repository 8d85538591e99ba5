"""Sweep over settings with Ray Tune: sample, train, stop bad trials early, resume after a kill."""

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Domain

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
from ramen_ray.orchestration.tune.ends import Ends
from ramen_ray.orchestration.tune.search_space import Space, check_space, grid, own_values
from ramen_ray.orchestration.tune.sweep_progress import SweepProgress
from ramen_ray.orchestration.tune.trials import (
    fit_trials,
    halving,
    new_tuner,
    num_at_once,
    parent_run,
    trainable_runs,
)
from ramen_ray.reports.sweep_report import SweepTrial
from ramen_ray.tracking.runs import Run

TUNE_FOLDER = "tune"
SWEEP_FORMAT = 5  # of what Tune pickles; a sweep of another format cannot be resumed


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

    trials: list[SweepTrial]
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
        progress = SweepProgress(config, distributions, directory, run, command)
        return RunningSweep(config, settings, dict(space), progress, made_from).run()


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
class RunningSweep:
    """A sweep in progress: what is tuned, how, where the progress is shown, and of what."""

    config: RunConfig
    settings: SweepConfig
    space: dict[str, Domain]
    progress: SweepProgress
    made_from: Identity

    def run(self) -> SweepResult:
        """Run all trials and report on them."""
        progress, config, name = self.progress, self.config, self.progress.directory.name
        ends = Ends(progress.ends, self._num_trials(), config.training, progress.on_end)
        is_known = {key: of for key, of in self.made_from.items() if self._is_fixed(key)}

        def config_of(params: dict[str, Any], trial: str) -> RunConfig:
            return overlay(config, {**params, "name": joined_name(name, trial)})

        at_once = self.settings.at_once or num_at_once(config.workers)
        runnable = trainable_runs(config_of, lambda _: is_known, progress.run, ends.folder, at_once)
        if config.workers.num_workers == 1:
            make_ready(config)  # most trials need nothing else then
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # an interrupted trial reports the epochs since its last checkpoint again
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
            results = fit_trials(lambda: self._tuner(runnable, ends), progress.run)
        if results is None:
            raise KeyboardInterrupt
        if ends.errors():
            check_meanwhile(self.made_from, identity_of(config, Dataset(config.dataset)))
        ends.out_of_time(Path(one.path).name for one in results)
        trials = progress.rank_results(results)
        if not trials or trials[0].value is None:
            raise RunError(f"no trial has been validated: {'; '.join(ends.by_trial().values())}")
        progress.show(trials)
        command = progress.command_of(trials[0])
        return SweepResult(trials, command, progress.report, progress.run)

    def _is_fixed(self, part: str) -> bool:
        """Whether all trials are made from the same ``part`` of an identity."""
        return SETTINGS.get(part) not in self.space

    def _num_trials(self) -> int:
        if self.settings.search == "grid":
            return math.prod(len(values) for values in self._grid().values())
        return self.settings.num_samples

    def _grid(self) -> dict[str, list[Any]]:
        return grid(self.progress.distributions)

    def _tuner(self, runnable: Any, ends: Ends) -> tune.Tuner:
        """Return a tuner that starts the sweep, or resumes it and retries failed trials."""
        settings, folder = self.settings, self.progress.directory.path / TUNE_FOLDER
        is_grid = settings.search == "grid"
        space: dict[str, Any] = self.space
        if is_grid:
            space = {key: tune.grid_search(values) for key, values in self._grid().items()}
        if tune.Tuner.can_restore(str(folder)):
            ends.forget_failures()
            return tune.Tuner.restore(
                str(folder),
                runnable,
                resume_unfinished=True,
                resume_errored=True,
                param_space=space,  # in case a full disk has kept Tune from noting what it drew
            )
        decides = {"metric": self.progress.metric, "mode": "max"}
        epochs = self.config.training.epochs
        how = {
            **decides,
            "search_alg": self._search_algorithm(decides),
            "scheduler": halving(epochs, settings.grace_epochs) if settings.stop_early else None,
            "num_samples": 1 if is_grid else settings.num_samples,
            "time_budget_s": settings.time_budget,
        }
        callbacks = [ends, JsonLoggerCallback()]
        return new_tuner(runnable, space, folder, self.config.workers, callbacks, how)

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
