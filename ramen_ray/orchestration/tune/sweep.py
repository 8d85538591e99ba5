"""Sweep over settings with Ray Tune: sample, train, stop bad trials early, go on after a kill."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler

from ramen_ray.config import ConfigError, RunConfig, overlay
from ramen_ray.long_work import Pace
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.inputs import check_config, edges_to_train, prepared_data
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.orchestration.tune.choice import (
    Choice,
    choose_trained,
    directory_of,
    further_seeds,
    luck,
    train_missing,
    with_seeds,
)
from ramen_ray.orchestration.tune.draws import (
    Drawing,
    Halving,
    Space,
    TrialSearch,
    check_space,
    tree_of_estimators,
)
from ramen_ray.orchestration.tune.experiment import (
    FAILED,
    OUT_OF_TIME,
    Experiment,
    open_experiment,
    read_trials,
    write_trials,
)
from ramen_ray.orchestration.tune.settings import OF_ONE_CALL, SWEEPS, SweepConfig
from ramen_ray.orchestration.tune.trials import Trials
from ramen_ray.reports.search_report import (
    TrialRecord,
    effects,
    plot_effects,
    trials_table,
    write_sweep_report,
)
from ramen_ray.tracking.registry import WINNER
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

SWEEP_FORMAT = 9  # of the table of trials; a sweep of another format cannot be resumed
METRIC = "training.selection_metric"
OWN = "own"  # the name of the configuration's own settings among the finalists


@dataclass(frozen=True)
class SweepResult:
    """The trials, best first; the command that trains with the chosen settings; the report."""

    trials: list[TrialRecord]
    command: str
    sentences: list[str]  # what further seeds and the settings show
    report: Path  # folder of the table and plots
    run: Run  # the parent of all trials' runs in MLflow


def sweep(
    config: RunConfig, settings: SweepConfig, space: Space, command: Callable[[RunConfig], str]
) -> SweepResult:
    """Sweep over ``space`` around ``config``, or go on with the same sweep, also to more trials.

    Trials that have ended are kept, failed ones tried again. Every trial is a run, and a child of
    the sweep's run in MLflow; the selection metric on the validation split decides. ``command``
    returns the command that trains with a configuration.

    Raises:
        ConfigError, DatasetError, EncoderError, ClusterError, TrackingError: the space, the input,
            the cluster or the store is not usable; nothing has been trained.
        RunError: another sweep has the name, another process is running the sweep, or no trial has
            been validated.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    inputs = Inputs.of(config)
    config = inputs.config
    check_config(config, inputs.dataset)
    drawing = Drawing.of(config, space, inputs.dataset)
    tuned = check_space(drawing, inputs.dataset)
    prior = _prior(settings.from_sweep, config)
    plan = {"sweep format": SWEEP_FORMAT, **settings.model_dump(exclude=OF_ONE_CALL)}
    with open_experiment(inputs, SWEEPS, settings.space, settings, plan) as experiment:
        records = read_trials(experiment.directory.path)
        return Sweep(experiment, drawing, settings, command, records).train(tuned, prior)


def _prior(name: str | None, config: RunConfig) -> list[TrialRecord]:
    """Return the trials of another sweep, best first; a ConfigError if it has none for ours."""
    if name is None:
        return []
    directory = RunDirectory.of(config.output, name, SWEEPS)
    trials = [trial for trial in read_trials(directory.path).values() if trial.value is not None]
    metric = directory.notes.get("plan", {}).get(METRIC)
    if not trials or metric is None:
        raise ConfigError(f"--from-sweep {name}: {directory.path} has no trials")
    if metric != config.training.selection_metric:
        raise ConfigError(
            f"--from-sweep {name} was decided by {metric}, not by "
            f"{config.training.selection_metric}; give --{METRIC.replace('_', '-')} {metric}"
        )
    return best_first(trials)


@dataclass(eq=False)
class Sweep:
    """A sweep in progress, and what it shows of its trials."""

    experiment: Experiment
    drawing: Drawing
    settings: SweepConfig
    command: Callable[[RunConfig], str]  # returns the command that trains with a configuration
    records: dict[str, TrialRecord] = field(default_factory=dict)  # by name, as they began
    pace: Pace = field(default_factory=Pace)  # of reports, as one of many trials takes seconds
    said: list[str] = field(default_factory=list)  # what the trials show
    links: list[str] = field(default_factory=list)  # to the finalists' runs in MLflow

    @property
    def config(self) -> RunConfig:
        """The configuration that is tuned."""
        return self.drawing.config

    def train(self, tuned: set[str], prior: list[TrialRecord]) -> SweepResult:
        """Run all trials that are missing, and try failed ones again, and report on them."""
        settings = self.settings
        again = [
            name
            for name, record in self.records.items()
            if not record.end or record.end.startswith((FAILED, OUT_OF_TIME))
        ]
        missing = max(settings.num_samples - len(self.records) + len(again), 0)
        for name in again[:missing]:
            self.records[name] = replace(self.records[name], end="")
        if missing > 0:
            self._train_trials(missing, tuned, prior)
        records = best_first(self.records.values())
        if not records or records[0].value is None:
            ends = dict.fromkeys(record.end for record in records if record.end)  # each once
            raise RunError(f"no trial has been validated: {'; '.join(ends) or OUT_OF_TIME}")
        command = self.show(records, self._choice(records))
        return SweepResult(records, command, self.said, self.experiment.report, self.experiment.run)

    def _train_trials(self, missing: int, tuned: set[str], prior: list[TrialRecord]) -> None:
        config = self.config
        settings = self.settings
        prefix = self.experiment.directory.name  # workers can unpickle it, unlike the space
        trials = Trials(
            self.experiment,
            lambda params, trial: overlay(config, {**params, "name": joined_name(prefix, trial)}),
            [config.training.selection_metric],
            missing,
            tuned,
            self.note_ends,
            settings.at_once,
            prefix,
        )
        if config.workers.num_workers == 1:
            # most trials need nothing else then
            edges_to_train(config, prepared_data(config, self.experiment.inputs.dataset))
        ended = [record for record in self.records.values() if record.end]
        grace = settings.grace_epochs / config.training.epochs
        records = trials.fit(
            {},
            search_alg=self._search(prior),
            scheduler=Halving(grace, earlier=ended) if settings.stop_early else None,
            num_samples=missing,
            time_budget_s=settings.time_budget,
        )
        self.keep(records)

    def _choice(self, records: list[TrialRecord]) -> Choice | None:
        """Train the finalists with further seeds, and choose one; None if there are too few."""
        config = self.config
        preset = self.drawing.own()
        whole = [record for record in records if record.is_whole and record.drawn != preset]
        count = self.settings.finalists
        if not count or len(records) <= count or not whole:
            return None
        finalists = {record.name: overlay(config, record.params) for record in whole[:count]}
        candidates = {**finalists, OWN: config}
        runs = with_seeds(self.experiment, candidates, further_seeds(config.seed))
        train_missing(self.experiment, runs)
        data = prepared_data(config, self.experiment.inputs.dataset)
        choice = choose_trained(self.experiment, runs, data, OWN)
        values = [record.value for record in records if record.value is not None]
        choice.sentences.append(luck(values, choice.noise))
        ids = {
            again.name: directory_of(again).mlflow_run_id
            for of_finalist in runs.values()
            for again in of_finalist
        }
        run = self.experiment.run
        self.links = [run.link_to_run(str(name), str(run_id)) for name, run_id in ids.items()]
        run.log_parameters({}, {WINNER: str(ids[runs[choice.chosen][0].name])})
        return choice

    def _changes(self, trials: list[TrialRecord], choice: Choice | None) -> Mapping[str, Any]:
        """Return the changes of what was chosen, or else of the best of ``trials``, best first."""
        if choice is None:
            return trials[0].params
        return self.records[choice.chosen].params if choice.chosen != OWN else {}

    def _search(self, prior: list[TrialRecord]) -> TrialSearch:
        """Return what draws trials, with what the trials of this and another sweep have shown."""
        seed = self.config.seed + len(self.records)  # or a later call would draw the same again
        sampler: BaseSampler = RandomSampler(seed)
        if self.settings.search == "tpe":
            sampler = tree_of_estimators(seed)
        folder = self.experiment.directory.path
        write = partial(write_trials, folder, self.records)  # without the store's address
        search = TrialSearch(self.drawing, sampler, self.records, self.metric, write)
        of_space = [trial for trial in prior if search.learn(trial)]
        if len(of_space) < len(prior):
            logger.warning(
                "%d of %d trials of --from-sweep %s have settings that this space has not",
                len(prior) - len(of_space),
                len(prior),
                self.settings.from_sweep,
            )
        if not self.records:
            first = [self.drawing.own(), *(dict(best.drawn) for best in of_space[:1])]
            search.first += [drawn for drawn in first if drawn is not None]
        return search

    def keep(self, ended: Iterable[TrialRecord]) -> None:
        """Take note of what has become of trials; how a trial ended stays as it was noted first."""
        for record in ended:
            before = self.records[record.name]
            if not before.end:
                self.records[record.name] = replace(
                    record, params=before.params, drawn=before.drawn
                )
        write_trials(self.experiment.directory.path, self.records)

    def note_ends(self, records: list[TrialRecord]) -> None:
        """Keep the table of trials, and show them, unless that was done a moment ago."""
        self.keep(record for record in records if record.end)
        if self.pace.is_due():
            self.show(best_first(self.records.values()))

    @property
    def metric(self) -> str:
        """Name of the metric that decides."""
        return VALIDATION + self.config.training.selection_metric

    def show(self, trials: list[TrialRecord], choice: Choice | None = None) -> str:
        """Log the table of trials, best first, plots and the best command, which is returned."""
        best = trials[0]
        run = self.experiment.run
        report = self.experiment.report
        changes = self._changes(trials, choice)
        command = ""
        if best.value is not None:
            command = self.command(overlay(self.config, {**changes, "name": None}))
        shares = write_sweep_report(report, trials, self.metric, command)
        noise = 0.0 if choice is None else choice.noise
        plot_effects(report, trials, list(shares), self.metric, noise)
        self.said = [*(choice.sentences if choice else []), *effects(trials, shares, noise)]
        links = [run.link_to(file.name) for file in sorted(report.iterdir())]
        told = [
            f"Train the best: `{command}`" if command else "",
            *self.said,
            f"Finalists: {', '.join(self.links)}" if self.links else "",
            f"Report: {', '.join(links)}",
        ]
        # what MLflow cuts, as too long, is at the end of the table
        self.experiment.publish(filter(None, told), trials_table(trials, self.metric))
        if best.value is not None:
            num_ended = sum(bool(trial.end) for trial in trials)
            run.log_metrics({f"best/{self.metric}": best.value}, num_ended)
        return command


def best_first(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Sort trials by what decides; those that were never validated are the last."""

    def rank(record: TrialRecord) -> tuple[bool, float, str]:
        return record.value is None, -(record.value or 0), record.name

    return sorted(records, key=rank)
