"""Runs as Ray Tune trials, as many at once as the cluster has room for.

A trial trains in its own process if its run has one worker; that process stays for the next trial.
Otherwise it starts workers of Ray Train, and waits for them.
"""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from io import StringIO
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import ray
from ray import tune
from ray.train import Checkpoint
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler

from ramen_ray.config import RunConfig, WorkersConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.made_folder import in_use, owned_folder
from ramen_ray.errors import UserError
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import (
    as_task,
    check_resources,
    no_placement_group_left,
    user_errors,
    worker_share,
)
from ramen_ray.orchestration.run.directory import Identity, RunDirectory, RunError
from ramen_ray.orchestration.run.fit import TrainResult, fit_on
from ramen_ray.orchestration.run.identity import check_meanwhile, identity_of
from ramen_ray.orchestration.run.inputs import edges_to_train, is_ready, prepared_data, resolved
from ramen_ray.orchestration.run.loop import IS_LAST
from ramen_ray.orchestration.run.processes import (
    START_TIMEOUT,
    VALIDATION,
    Train,
    only_worker,
    train_in_workers,
)
from ramen_ray.orchestration.run.worker import WorkerResult
from ramen_ray.orchestration.tune.trial_log import (
    EPOCH,
    NAME,
    SHARE_DONE,
    TrialLog,
    failures,
    kept_error,
    name_of,
)
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.runs import Run, prefixed

REDUCTION_FACTOR = 3
ERRORS = "errors"  # the folder of what trials failed with
THREAD_TIMEOUT = "TUNE_FUNCTION_THREAD_TIMEOUT_S"
"""How long Tune waits for a trial that it has stopped, before it uses the process again."""
A_DAY_S = 86_400


@contextmanager
def parent_run(directory: RunDirectory, config: RunConfig, made_from: Identity) -> Iterator[Run]:
    """Hold the folder of an experiment of many runs, with Ray started and its MLflow run open.

    Raises a ClusterError, TrackingError, or a RunError if another process holds or made the folder.
    """
    output = Path(config.output)
    dataset = Dataset(config.dataset)
    with in_use(dataset.path), directory.held(made_from, dataset.path, config.allow_changed):
        # a trial that is stopped early prints a traceback
        start_ray(show_workers=False, for_ray_train=True)
        check_resources(config.workers)
        run = directory.open_run(tracking_uri(output), config.experiment, output)
        with run.closing():
            try:
                yield run
                # of one dataset, MLflow keeps the figures that come first: those of the runs
                run.log_dataset(dataset.name, made_from["dataset"], dataset.path, {})
            except RunError:  # maybe as what runs are made from is not what it was
                now = identity_of(config, Dataset(config.dataset))
                check_meanwhile(made_from, now, config.dataset)
                raise
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(
                    "the same command keeps finished runs, and goes on"
                ) from stop


def train_all(
    configs: Mapping[str, RunConfig],
    parent: Run,
    folder: Path,
    expected: Identity,
    log: TrialLog,
    **limits: Any,
) -> str:
    """Train every configuration as a part of one MLflow run; if one fails, the others go on.

    Args:
        configs: by the name of the run; of one dataset, with the same workers and metric.
        parent: the MLflow run.
        folder: where Tune keeps its files meanwhile, on a disk that all machines can reach.
        expected: what all runs must be made from.
        log: says how far they are.
        limits: of Tune's TuneConfig.

    Returns:
        Which runs failed, in words; "" if none did.
    """
    first = next(iter(configs.values()))
    dataset = Dataset(first.dataset)
    for config in configs.values() if first.workers.num_workers == 1 else ():
        with suppress(UserError):  # its trial will tell
            edges_to_train(config, prepared_data(config, dataset))
    log.total = len(configs)
    trials = Trials(lambda params, _: configs[params[NAME]], expected, parent, first.workers, log)
    with owned_folder(folder) as storage:
        space = {NAME: tune.grid_search(list(configs))}
        records = trials.fit(space, storage / "trials", limits)
        if not limits and len(records) < len(configs):
            raise KeyboardInterrupt  # before Tune had drawn the rest
        return failures(records)


class Halving(ASHAScheduler):
    """Stops trials that lag behind after the same share of their training, but not at their end.

    None is stopped before the share ``grace``, nor those named in ``spared``. They are compared
    with those of an ``earlier`` call, too.
    """

    def __init__(
        self, grace: float, spared: Collection[str] = (), earlier: Collection[TrialRecord] = ()
    ) -> None:
        super().__init__(
            time_attr=SHARE_DONE,
            max_t=sys.maxsize,  # trials end by themselves
            grace_period=grace,
            reduction_factor=REDUCTION_FACTOR,
        )
        self.spared = spared
        self.earlier = earlier

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take what decides, by which trials of earlier calls are compared with, too."""
        is_set: bool = super().set_search_properties(metric, mode, **spec)
        for record in self.earlier:
            trial = SimpleNamespace(trial_id=record.name, config={NAME: record.name})
            self.on_trial_add(None, trial)
            for share, value in record.course:
                self.on_trial_result(None, trial, {SHARE_DONE: share, str(metric): value})
        return is_set

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Take a result into account; returns what becomes of the trial."""
        action: str = super().on_trial_result(tune_controller, trial, result)
        goes_on = result.get(IS_LAST) or name_of(trial) in self.spared
        return self.CONTINUE if goes_on else action


@dataclass(frozen=True)
class Trials:
    """What trials have in common: each is a run, and a part of one run in MLflow."""

    # returns a trial's configuration, from its parameters and its name
    config_of: Callable[[dict[str, Any], str], RunConfig]
    expected: Identity  # what every run must be made from, or a part of it
    parent: Run
    workers: WorkersConfig
    log: TrialLog
    at_once: int | None = None  # how many run at a time; None for as many as there is room for

    def fit(
        self, space: Mapping[str, Any], folder: Path, settings: Mapping[str, Any]
    ) -> list[TrialRecord]:
        """Run the trials of a space; Tune keeps its files in ``folder`` meanwhile.

        ``settings`` are of Tune's TuneConfig. Returns what has become of each trial.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            OSError: files that it writes are deleted, or made read-only, meanwhile.
        """
        with running_tune():
            shutil.rmtree(self.log.errors, ignore_errors=True)  # of an earlier call
            tuner = tune.Tuner(
                self._trainable(),
                param_space=dict(space),
                tune_config=tune.TuneConfig(
                    trial_name_creator=name_of,
                    trial_dirname_creator=name_of,
                    reuse_actors=True,  # they have imported everything
                    **settings,
                ),
                run_config=tune.RunConfig(
                    name=folder.name,
                    storage_path=str(folder.parent),
                    callbacks=[self.log],
                    failure_config=tune.FailureConfig(max_failures=self.workers.max_failures),
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
                self.parent.close_children_left_open()
        if results.num_terminated + results.num_errors < len(results):
            raise KeyboardInterrupt  # which Tune treats as a pause
        return [self.log.record(trial) for trial in self.log.trials]

    def _trainable(self) -> Any:
        """Return what Tune runs, with what a trial takes: next to nothing, unless it is a worker.

        It is one if it trains in its own process, and needs no others before.
        """
        # by names of their own, as workers cannot unpickle all that ``self`` has
        config_of = self.config_of
        expected = self.expected
        errors = self.log.errors
        workers = self.workers
        at_once = self.at_once

        def train(params: dict[str, Any], parent: Run) -> None:
            name = tune.get_context().get_trial_name()
            with kept_error(errors, name):
                config = config_of(params, name)
                result = _train_in_trial(config, parent, expected)
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
        return tune.with_resources(tune.with_parameters(train, parent=self.parent), resources)


def _train_in_trial(config: RunConfig, parent: Run, expected: Identity) -> TrainResult:
    """Train within a Tune trial, if not done yet; reports each validation."""
    logging.getLogger("ramen_ray").setLevel(logging.ERROR)
    os.environ.setdefault(START_TIMEOUT, str(A_DAY_S))  # if a machine is lost, until others end
    os.environ.setdefault(THREAD_TIMEOUT, "60")  # for the end of a background task
    config = resolved(config)
    dataset = Dataset(config.dataset)
    made_from = identity_of(config, dataset)
    check_meanwhile(expected, made_from, dataset.path)
    if not is_ready(config, dataset):
        # Within a trial, Ray Data would have the trial's own resources only, maybe without a CPU.
        with user_errors():
            ray.get(as_task(prepared_data).remote(config, dataset))
    metric = VALIDATION + config.training.selection_metric

    epochs = config.training.epochs

    def on_report(metrics: dict[str, Any]) -> None:
        if metric in metrics:
            tune.report({**metrics, SHARE_DONE: metrics[EPOCH] / epochs})

    def train_here(train: Train[WorkerResult], *_: object) -> WorkerResult:
        return train(only_worker(on_report))

    is_worker = "CPU" in ray.get_runtime_context().get_assigned_resources()
    in_workers = partial(train_in_workers, callbacks=[_ReportValidations(metric, epochs)])
    return fit_on(dataset, config, made_from, train_here if is_worker else in_workers, parent)


class _ReportValidations(TuneReportCallback):
    """Reports to Tune only what has the metric, not checkpoints within an epoch."""

    def __init__(self, metric: str, epochs: int) -> None:
        super().__init__()
        self.metric = metric
        self.epochs = epochs

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        if self.metric in metrics[0]:
            done = {SHARE_DONE: metrics[0][EPOCH] / self.epochs}
            super().after_report(run_context, [{**metrics[0], **done}, *metrics[1:]], checkpoint)


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
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # else Ctrl-C looks like the end of the time
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with no_placement_group_left(), redirect_stdout(StringIO()):
        yield
