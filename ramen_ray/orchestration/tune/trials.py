"""Runs as Ray Tune trials, as many at once as the cluster has room for.

A trial trains in its own process if its run has one worker; that process stays for the next trial.
Otherwise it starts workers of Ray Train, and waits for them.
"""

import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from functools import partial
from io import StringIO
from pickle import UnpicklingError
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.integration.ray_train import TuneReportCallback

from ramen_ray.config import RunConfig, WorkersConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.errors import UserError
from ramen_ray.long_work import Pace
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.cluster.resources import (
    as_task,
    no_placement_group_left,
    user_errors,
    worker_share,
)
from ramen_ray.orchestration.run.directory import Identity, RunDirectory
from ramen_ray.orchestration.run.fit import TrainResult, fit_on
from ramen_ray.orchestration.run.identity import Inputs, check_meanwhile, without_tuned
from ramen_ray.orchestration.run.inputs import is_ready, prepared_data
from ramen_ray.orchestration.run.loop import IS_LAST, SHARE_DONE
from ramen_ray.orchestration.run.processes import (
    START_TIMEOUT,
    VALIDATION,
    Train,
    only_worker,
    train_in_workers,
)
from ramen_ray.orchestration.run.worker import WorkerResult
from ramen_ray.orchestration.tune.draws import name_of
from ramen_ray.orchestration.tune.experiment import (
    EPOCH,
    FAILED,
    OUT_OF_TIME,
    STOPPED_EARLY,
    Experiment,
    record_of,
)
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.runs import Run, prefixed

ERROR = "error"  # what a trial has failed with; it ends as others do, as Tune would start it again
ENDED = (Trial.TERMINATED, Trial.ERROR)
THREAD_TIMEOUT = "TUNE_FUNCTION_THREAD_TIMEOUT_S"
"""How long Tune waits for a trial that it has stopped, before it uses the process again."""
A_DAY_S = 86_400

OnEnd = Callable[[list[TrialRecord]], None]
"""Called with the records of all trials when one has ended."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Trials(tune.Callback):
    """Trials, each of which is a run of an experiment; logs how far they are, and how each ends."""

    experiment: Experiment
    # returns a trial's configuration, from its parameters and its name
    config_of: Callable[[dict[str, Any], str], RunConfig]
    decides: Sequence[str]  # validation metrics, the mean of which is a trial's value
    total: int  # how many there will be
    tuned: Collection[str] = ()  # settings in which they may differ, though these name inputs
    on_end: OnEnd = lambda records: None
    at_once: int | None = None  # how many run at a time; None for as many as there is room for
    prefix: str = ""  # begins the names of their runs
    ends_at: float = math.inf  # by the monotonic clock
    pace: Pace = field(default_factory=Pace)
    courses: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    ended: list[Trial] = field(default_factory=list)  # all, once Tune has ended

    def __getstate__(self) -> dict[str, Any]:
        """Leave nothing in Tune's files, as the address of a store may have a password."""
        return {}

    @property
    def config(self) -> RunConfig:
        """What the trials change."""
        return self.experiment.inputs.config

    def fit(self, space: Mapping[str, Any], **limits: Any) -> list[TrialRecord]:
        """Run the trials of a space; Tune keeps its files in the experiment's folder meanwhile.

        ``limits`` are of Tune's TuneConfig. Returns what has become of each trial.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            OSError: files that it writes are deleted, or made read-only, meanwhile.
        """
        workers = self.config.workers
        trainable = _trainable(self.experiment, self.config_of, workers, self.tuned, self.at_once)
        self.ends_at = time.monotonic() + (limits.get("time_budget_s") or math.inf)
        with running_tune(), owned_folder(self.experiment.directory.path) as folder:
            tuner = tune.Tuner(
                trainable,
                param_space=dict(space),
                tune_config=tune.TuneConfig(
                    metric=VALIDATION + self.config.training.selection_metric,
                    mode="max",
                    trial_name_creator=name_of,
                    trial_dirname_creator=name_of,
                    reuse_actors=True,  # they have imported everything
                    **limits,
                ),
                run_config=tune.RunConfig(
                    name="trials",
                    storage_path=str(folder),
                    callbacks=[self],
                    failure_config=tune.FailureConfig(max_failures=workers.max_failures),
                    verbose=0,
                ),
            )
            try:
                results = tuner.fit()
            except tune.TuneError as error:
                if isinstance(error.__context__, OSError):  # Tune has its traceback as the message
                    raise error.__context__ from None
                raise
            except (UnpicklingError, EOFError) as error:  # a full disk has cut Tune's own files
                raise OSError(ENOSPC, os.strerror(ENOSPC), str(folder)) from error
            finally:
                self.experiment.run.close_children_left_open()
        if results.num_terminated + results.num_errors < len(results):
            raise KeyboardInterrupt  # which Tune treats as a pause
        return [self.record(trial) for trial in self.ended]

    def record(self, trial: Trial, has_ended: bool = False) -> TrialRecord:
        """Return what has become of a trial, which may have ended before Tune has it so."""
        name = name_of(trial)
        run = joined_name(self.prefix, name) if self.prefix else name
        directory = RunDirectory.of(self.config.output, run)
        record = record_of(directory, self.decides)
        record = replace(record, name=name, course=self.courses[name])
        if record.is_whole or not (has_ended or trial.status in ENDED):
            return record
        if (message := error_of(trial)) is not None:
            return replace(record, end=f"{FAILED}{message}")
        is_late = record.value is None or time.monotonic() >= self.ends_at
        return replace(record, end=OUT_OF_TIME if is_late else STOPPED_EARLY)

    def on_step_end(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Log, now and then, which trials run, the best value, and the time left."""
        if not self.pace.is_due():
            return
        most = self.config.training.epochs
        running = [trial for trial in trials if trial.status == Trial.RUNNING]
        epochs = [trial.last_result.get(EPOCH, 0) for trial in running]
        num_ended = sum(trial.status in ENDED for trial in trials)
        if not running and not num_ended:
            return
        said = f"{num_ended} of {self.total} trials have ended, {len(running)} run"
        if running:
            of_most = f" of {most}" if max(epochs) <= most else ""  # or longer
            said += f" (epoch {', '.join(f'{epoch:g}' for epoch in epochs)}{of_most})"
        records = [record for record in map(self.record, trials) if record.value is not None]
        if records:
            best = max(records, key=lambda record: record.value or 0)
            said += f"; best so far: validation {in_percent(best.metrics, self.decides)}"
        done = num_ended + sum(min(epoch / most, 1) for epoch in epochs)
        by_pace = self.pace.seconds_left(done, self.total)
        left = min(math.inf if by_pace is None else by_pace, self.ends_at - time.monotonic())
        logger.info(said if left == math.inf else f"{said}; at most about {left:.0f} s left")

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        """Note what a trial has reached, and when, for trials of later calls."""
        if VALIDATION + self.decides[0] in result:  # else it failed, or was not validated
            values = [result[VALIDATION + name] for name in self.decides]
            self.courses[name_of(trial)].append([result[SHARE_DONE], sum(values) / len(values)])

    def on_experiment_end(self, trials: list[Trial], **_: Any) -> None:
        """Keep the trials; Tune's files of them may be cut by a full disk."""
        self.ended = trials

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """Log a trial that finished, failed or was stopped early."""
        self._end(trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """Log that the processes of a trial have died too often."""
        self._end(trials, trial)

    def _end(self, trials: list[Trial], trial: Trial) -> None:
        record = self.record(trial, has_ended=True)
        others = [other for other in trials if other is not trial and other.status in ENDED]
        told = {f"{FAILED}{error_of(other)}" for other in others}
        if record.end not in told:
            figures = in_percent(record.metrics, self.decides)
            reached = f"validation {figures}, " if figures else ""
            number = f"{len(others) + 1}/{self.total}"
            logger.info("%s %s: %s%s", number, record.name, reached, record.end)
        try:
            if record.mlflow_run_id is not None and not record.is_whole:
                status = "FAILED" if record.end.startswith(FAILED) else "FINISHED"
                Run(self.experiment.run.uri, record.mlflow_run_id).close_if_open(status)
            self.on_end([record, *map(self.record, (t for t in trials if t is not trial))])
        except Exception as error:  # an error here would fail the trial; the end shows all again
            logger.warning("%s is not shown in MLflow yet: %s", record.name, error)


def error_of(trial: Trial) -> str | None:
    """Return why a trial failed, in one line; None if it did not."""
    if trial.status != Trial.ERROR:
        raised: str | None = trial.last_result.get(ERROR)
        return raised
    return (
        f"its process has died {trial.max_failures + 1} times, once more than "
        f"workers.max_failures allows; see whether its machine has enough memory"
    )


def in_percent(metrics: Mapping[str, float], names: Sequence[str]) -> str:
    """Return some metrics for people."""
    return ", ".join(f"{name} {100 * metrics[name]:.2f}" for name in names if name in metrics)


def _trainable(
    experiment: Experiment,
    config_of: Callable[[dict[str, Any], str], RunConfig],
    workers: WorkersConfig,
    tuned: Collection[str],
    at_once: int | None,
) -> Any:
    """Return what Tune runs, with what a trial takes: next to nothing, unless it is a worker.

    It is one if it trains in its own process, and needs no others before.
    """
    expected = without_tuned(experiment.inputs.made_from, tuned)

    def train(params: dict[str, Any], parent: Run) -> None:
        try:
            config = config_of(params, tune.get_context().get_trial_name())
            result = _train_in_trial(config, parent, expected)
        except Exception as error:  # Tune would start the trial again
            tune.report({ERROR: (str(error).strip() or type(error).__name__).splitlines()[-1]})
            return
        reached = prefixed(VALIDATION, result.metrics["trained"]["validation"])
        end = {EPOCH: config.training.epochs, SHARE_DONE: 1.0, IS_LAST: True}
        tune.report({**reached, **end})

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    address = ray.get_runtime_context().gcs_address.rpartition(":")[0]
    opened: dict[str, Dataset] = {}  # most trials have one, which is hashed once

    def resources(params: dict[str, Any]) -> tune.PlacementGroupFactory:
        worker: list[dict[str, float]] = []
        with suppress(UserError):  # the trial will tell
            config = config_of(params, "trial")
            path = config.dataset
            dataset = opened[path] = opened.get(path) or Dataset(path)
            if config.workers.num_workers == 1 and is_ready(config, dataset):
                worker = [worker_share(config.workers)]
        if worker and at_once is None:  # as there is room, also on machines that join
            return tune.PlacementGroupFactory(worker)
        num_trials = at_once or num_held(workers, machines)
        # Ray counts in units of 1/10,000, and would round up.
        of_head = {f"node:{address}": 10_000 // num_trials / 10_000}
        return tune.PlacementGroupFactory([*worker, of_head])

    # Tune writes a function that it pickles to disk, but not its parameters: the address of the
    # MLflow store may have a password.
    with_parent = tune.with_parameters(train, parent=experiment.run)
    return tune.with_resources(with_parent, resources)


def _train_in_trial(config: RunConfig, parent: Run, expected: Identity) -> TrainResult:
    """Train within a Tune trial, if not done yet; reports each checkpoint."""
    logging.getLogger("ramen_ray").setLevel(logging.ERROR)
    os.environ.setdefault(START_TIMEOUT, str(A_DAY_S))  # if a machine is lost, until others end
    os.environ.setdefault(THREAD_TIMEOUT, "60")  # for the end of a background task
    inputs = Inputs.of(config)
    config = inputs.config
    dataset = inputs.dataset
    check_meanwhile(expected, inputs.made_from, dataset.path)
    if not is_ready(config, dataset):
        # Within a trial, Ray Data would have the trial's own resources only, maybe without a CPU.
        with user_errors():
            ray.get(as_task(prepared_data).remote(config, dataset))

    def train_here(train: Train[WorkerResult], *_: object) -> WorkerResult:
        return train(only_worker(tune.report))

    is_worker = "CPU" in ray.get_runtime_context().get_assigned_resources()
    in_workers = partial(train_in_workers, callbacks=[TuneReportCallback()])
    return fit_on(inputs, train_here if is_worker else in_workers, parent)


def num_held(workers: WorkersConfig, machines: Iterable[Mapping[str, float]]) -> int:
    """Return how many runs of these workers fit at once, at least 1, on machines' resources.

    A worker is on one machine, its share of a GPU on one GPU.
    """
    per_gpu = int(1 / workers.gpus_per_worker + 1e-9)
    num_workers = 0
    for machine in machines:
        fitting = int(machine.get("CPU", 0) // workers.cpus_per_worker)
        if workers.use_gpu:
            fitting = min(fitting, int(machine.get("GPU", 0)) * per_gpu)
        num_workers += fitting
    return max(num_workers // workers.num_workers, 1)


@contextmanager
def running_tune() -> Iterator[None]:
    """Silence Tune and its loggers, and release the CPUs and GPUs that its trials held."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = "1"  # sample no trial before it can start
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial that fails reports none
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # else Ctrl-C looks like the end of the time
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with no_placement_group_left(), redirect_stdout(StringIO()):
        yield
