"""Runs as Ray Tune trials, as many at once as the cluster has room for.

A trial trains in its own process if its run has one worker; that process stays for the next trial.
Otherwise it starts workers of Ray Train, and waits for them.
"""

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from io import StringIO
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
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.errors import UserError
from ramen_ray.orchestration.cluster.resources import (
    as_task,
    no_placement_group_left,
    user_errors,
    worker_share,
)
from ramen_ray.orchestration.run.directory import Identity
from ramen_ray.orchestration.run.fit import TrainResult, fit_on
from ramen_ray.orchestration.run.identity import Inputs, check_meanwhile, without_tuned
from ramen_ray.orchestration.run.inputs import edges_to_train, is_ready, prepared_data
from ramen_ray.orchestration.run.loop import IS_LAST
from ramen_ray.orchestration.run.processes import (
    START_TIMEOUT,
    VALIDATION,
    Train,
    only_worker,
    train_in_workers,
)
from ramen_ray.orchestration.run.worker import WorkerResult
from ramen_ray.orchestration.tune.experiment import Experiment
from ramen_ray.orchestration.tune.trial_log import (
    EPOCH,
    ERROR,
    NAME,
    SHARE_DONE,
    TrialLog,
    failures,
    name_of,
)
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.runs import Run, prefixed

REDUCTION_FACTOR = 3
THREAD_TIMEOUT = "TUNE_FUNCTION_THREAD_TIMEOUT_S"
"""How long Tune waits for a trial that it has stopped, before it uses the process again."""
A_DAY_S = 86_400


def train_all(
    experiment: Experiment,
    configs: Mapping[str, RunConfig],
    log: TrialLog,
    tuned: Collection[str] = (),
    **limits: Any,
) -> str:
    """Train configurations, by their names, as runs of an experiment; if one fails, others go on.

    They have one dataset, and the same workers and metric; see :class:`Trials` for ``tuned``.
    ``limits`` are of Tune's TuneConfig. Returns which runs failed, in words; "" if none did.
    """
    dataset = experiment.inputs.dataset
    for config in configs.values() if experiment.inputs.config.workers.num_workers == 1 else ():
        with suppress(UserError):  # its trial will tell
            edges_to_train(config, prepared_data(config, dataset))
    log.total = len(configs)
    trials = Trials(experiment, lambda params, _: configs[params[NAME]], log, tuned)
    records = trials.fit({NAME: tune.grid_search(list(configs))}, limits)
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
    """What trials have in common: each is a run of an experiment."""

    experiment: Experiment
    # returns a trial's configuration, from its parameters and its name
    config_of: Callable[[dict[str, Any], str], RunConfig]
    log: TrialLog
    tuned: Collection[str] = ()  # settings in which they may differ, though these name inputs
    at_once: int | None = None  # how many run at a time; None for as many as there is room for

    @property
    def workers(self) -> WorkersConfig:
        """The workers of each."""
        return self.experiment.inputs.config.workers

    def fit(self, space: Mapping[str, Any], settings: Mapping[str, Any]) -> list[TrialRecord]:
        """Run the trials of a space; Tune keeps its files in the experiment's folder meanwhile.

        ``settings`` are of Tune's TuneConfig. Returns what has become of each trial.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            OSError: files that it writes are deleted, or made read-only, meanwhile.
        """
        with running_tune(), owned_folder(self.experiment.directory.path) as folder:
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
                    name="trials",
                    storage_path=str(folder),
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
                self.experiment.run.close_children_left_open()
        if results.num_terminated + results.num_errors < len(results):
            raise KeyboardInterrupt  # which Tune treats as a pause
        return [self.log.record(trial) for trial in self.log.trials]

    def _trainable(self) -> Any:
        """Return what Tune runs, with what a trial takes: next to nothing, unless it is a worker.

        It is one if it trains in its own process, and needs no others before.
        """
        # by names of their own, as workers cannot unpickle all that ``self`` has
        config_of = self.config_of
        expected = without_tuned(self.experiment.inputs.made_from, self.tuned)
        workers = self.workers
        at_once = self.at_once

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
        with_parent = tune.with_parameters(train, parent=self.experiment.run)
        return tune.with_resources(with_parent, resources)


def _train_in_trial(config: RunConfig, parent: Run, expected: Identity) -> TrainResult:
    """Train within a Tune trial, if not done yet; reports each validation."""
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
    metric = VALIDATION + config.training.selection_metric

    epochs = config.training.epochs

    def on_report(metrics: dict[str, Any]) -> None:
        if metric in metrics:
            tune.report({**metrics, SHARE_DONE: metrics[EPOCH] / epochs})

    def train_here(train: Train[WorkerResult], *_: object) -> WorkerResult:
        return train(only_worker(on_report))

    is_worker = "CPU" in ray.get_runtime_context().get_assigned_resources()
    in_workers = partial(train_in_workers, callbacks=[_ReportValidations(metric, epochs)])
    return fit_on(inputs, train_here if is_worker else in_workers, parent)


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
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial that fails reports none
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # else Ctrl-C looks like the end of the time
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with no_placement_group_left(), redirect_stdout(StringIO()):
        yield
