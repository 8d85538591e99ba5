"""Runs as Ray Tune trials, as many at once as the cluster has room for.

A trial trains in its own process if its run has one worker: that process stays for the next trial,
with its libraries loaded. Otherwise it starts workers of Ray Train, and waits for them.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.train import Checkpoint
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler

from ramen_ray.config import RunConfig, WorkersConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import UserError
from ramen_ray.method.metrics.judgement import HEADLINES
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import (
    check_resources,
    no_placement_group_left,
    user_errors,
    worker_share,
)
from ramen_ray.orchestration.prepare.pipeline import prepare, prepared_folder
from ramen_ray.orchestration.run.build import encoder_tokenizer
from ramen_ray.orchestration.run.directory import Identity, RunDirectory
from ramen_ray.orchestration.run.fit import TrainResult, finished_result, fit
from ramen_ray.orchestration.run.start import check_meanwhile, is_ready, make_ready
from ramen_ray.orchestration.run.workers import START_TIMEOUT, VALIDATION
from ramen_ray.orchestration.tune.records import (
    EPOCH,
    NAME,
    SUMMARY,
    Records,
    kept_error,
    name_of,
)
from ramen_ray.tracking.runs import Run, prefixed, tracking_uri

REDUCTION_FACTOR = 3
THREAD_TIMEOUT = "TUNE_FUNCTION_THREAD_TIMEOUT_S"
"""How long Tune waits for a trial that it has stopped, before it uses the process again."""
A_DAY_S = 86_400


@dataclass(frozen=True)
class Budget:
    """What limits trials: seconds after which all end, and epochs that one gets that lags behind.

    The ``records`` of trials outlive the call.
    """

    seconds: float
    grace_epochs: int
    records: Records


@contextmanager
def parent_run(directory: RunDirectory, config: RunConfig, made_from: Identity) -> Iterator[Run]:
    """Hold the folder of an experiment of many runs, with Ray started and its MLflow run open.

    Raises:
        ClusterError, TrackingError: the cluster or the store is not usable.
        RunError: another process holds the folder, or it is not ``made_from`` the same.
    """
    output = Path(config.output)
    with directory.held(made_from, config.allow_changed):
        # a trial that is stopped early prints a traceback
        start_ray(show_workers=False, for_ray_train=True)
        check_resources(config.workers)
        run = directory.open_run(tracking_uri(output), config.experiment, output)
        with run.closing():
            try:
                yield run
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(
                    "the same command keeps finished runs, and goes on"
                ) from stop


def run_trials(
    configs: Mapping[str, RunConfig],
    parent: Run,
    folder: Path,
    expected: Mapping[str, Identity],
    budget: Budget | None = None,
) -> dict[str, str]:
    """Train every configuration as a part of one MLflow run; if one fails, the others go on.

    They come by trial name, with absolute paths, the same workers and the same selection metric.
    All machines can reach the ``folder`` where Tune keeps its files. What runs must be made from is
    ``expected``, by the path of their dataset. Returns the errors, a line each, by name.
    """
    if not configs:
        return {}
    first = next(iter(configs.values()))
    for config in configs.values() if first.workers.num_workers == 1 else ():
        with suppress(UserError):  # its trial will tell
            if not is_ready(config):
                make_ready(config)
    with tempfile.TemporaryDirectory(prefix=".tune-", dir=folder) as storage:
        records = (
            Records(Path(storage) / "records", first.training, total=len(configs))
            if budget is None
            else budget.records
        )
        runnable = trainable_runs(
            lambda params, _: configs[params[NAME]],
            lambda config: expected[config.dataset],
            parent,
            records.folder,
            num_at_once(first.workers),
            says_test=budget is None,
        )
        limits = {}
        if budget is not None:
            limits = {
                "metric": VALIDATION + first.training.selection_metric,
                "mode": "max",
                "time_budget_s": budget.seconds,
                "scheduler": halving(first.training.epochs, budget.grace_epochs),
            }
        space = {NAME: tune.grid_search(list(configs))}
        results = fit_trials(
            lambda: new_tuner(
                runnable, space, Path(storage, "trials"), first.workers, records, limits
            ),
            parent,
        )
        if results is None or (budget is None and records.num_ended() < len(configs)):
            raise KeyboardInterrupt
        return records.errors()


def new_tuner(
    runnable: Any,
    space: Mapping[str, Any],
    folder: Path,
    workers: WorkersConfig,
    records: Records,
    settings: Mapping[str, Any],
) -> tune.Tuner:
    """Return a tuner that keeps its files in ``folder``; ``settings`` are of its TuneConfig."""
    return tune.Tuner(
        runnable,
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
            callbacks=[records],
            failure_config=tune.FailureConfig(max_failures=workers.max_failures),
            verbose=0,
        ),
    )


def fit_trials(tuner: Callable[[], tune.Tuner], parent: Run) -> tune.ResultGrid | None:
    """Run trials, the parts of an MLflow run; returns None if Ctrl-C has ended them.

    Raises an OSError if files that it writes are deleted, or made read-only, meanwhile.
    """
    with running_tune():
        try:
            results = tuner().fit()
        except tune.TuneError as error:
            if isinstance(error.__context__, OSError):  # Tune has its traceback as the message
                raise error.__context__ from None
            raise
        finally:
            parent.close_children_left_open()
    # Tune treats Ctrl-C as a pause.
    is_whole = results.num_terminated + results.num_errors == len(results)
    return results if is_whole else None


def halving(epochs: int, grace_epochs: int) -> ASHAScheduler:
    """Return a scheduler that stops trials that lag behind others of as many epochs (ASHA)."""
    return ASHAScheduler(
        time_attr=EPOCH,
        max_t=epochs + 1,  # beyond the end: no trial is stopped at its last epoch
        grace_period=min(grace_epochs, epochs),
        reduction_factor=REDUCTION_FACTOR,
    )


def trainable_runs(
    config_of: Callable[[dict[str, Any], str], RunConfig],
    expected_of: Callable[[RunConfig], Identity],
    parent: Run,
    folder: Path,
    at_once: int,
    says_test: bool = True,
) -> Any:
    """Return a trainable, run ``at_once`` at a time, whose trials are runs below ``parent``.

    ``config_of`` returns a trial's configuration, from its parameters and its name; ``expected_of``
    what a run must be made from. Errors are kept in the ``folder`` of the trials' records. How a
    trial ended is told with metrics of the test split if ``says_test``.
    """

    def train(params: dict[str, Any], folder: Path) -> None:
        name = tune.get_context().get_trial_name()
        with kept_error(folder, name):
            config = config_of(params, name)
            metric, started = VALIDATION + config.training.selection_metric, time.monotonic()
            result = train_in_trial(config, parent, expected_of(config), metric)
            seconds = f"{time.monotonic() - started:.0f} s"
            reached = result.metrics["trained"]
            figures = ", ".join(f"{one} {100 * reached['test'][one]:.2f}" for one in HEADLINES)
            test = f"test {figures} ({seconds})" if says_test else f"trained to the end ({seconds})"
            named = prefixed(VALIDATION, reached["validation"])
            tune.report({**named, SUMMARY: test, EPOCH: config.training.epochs})

    return trainable(train, at_once, lambda params: config_of(params, "trial"), folder=folder)


def train_in_trial(config: RunConfig, parent: Run, expected: Identity, metric: str) -> TrainResult:
    """Train within a Tune trial, if not done yet; reports each validation that has ``metric``."""
    logging.getLogger("ramen_ray").setLevel(logging.ERROR)
    os.environ.setdefault(START_TIMEOUT, str(A_DAY_S))  # if a machine is lost, until others end
    os.environ.setdefault(THREAD_TIMEOUT, "60")  # for the end of a background task
    dataset, cache = Dataset(config.dataset), Path(config.output) / "prepared"
    check_meanwhile(expected, {**expected, "dataset": dataset.fingerprint})  # before it is prepared
    tokenizer = encoder_tokenizer(config.encoder)
    if not prepared_folder(dataset, cache, tokenizer).is_dir():
        # Within a trial, Ray Data's tasks would be limited to the trial's own resources, which
        # include no CPU then.
        apart = ray.remote(prepare).options(num_cpus=0, scheduling_strategy="DEFAULT")
        with user_errors():
            ray.get(apart.remote(dataset, cache, tokenizer))
    if (finished := finished_result(config, expected)) is not None:
        return finished
    if "CPU" not in ray.get_runtime_context().get_assigned_resources():
        return fit(config, parent, [_ReportValidations(metric)], expected=expected)

    def on_report(metrics: dict[str, Any]) -> None:
        if metric in metrics:
            tune.report(metrics)

    return fit(config, parent, on_report=on_report, expected=expected)


class _ReportValidations(TuneReportCallback):
    """Reports to Tune only what has the metric, not checkpoints within an epoch."""

    def __init__(self, metric: str) -> None:
        super().__init__()
        self.metric = metric

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        if self.metric in metrics[0]:
            super().after_report(run_context, metrics, checkpoint)


def trainable(
    train: Callable[..., None],
    at_once: int,
    config_of: Callable[[dict[str, Any]], RunConfig],
    **arguments: Any,
) -> Any:
    """Return ``train(params, **arguments)`` as a Tune trainable, run ``at_once`` at a time.

    ``config_of`` returns the configuration of a trial's run. A trial takes what a worker needs if
    it trains in its own process, and needs no others before. All share one copy of the arguments.
    """
    address = ray.get_runtime_context().gcs_address.rpartition(":")[0]
    # This also limits the trials that a restored search runs again; a searcher's limit does not.
    part = 10_000 // at_once / 10_000  # Ray counts in units of 1/10,000, and would round up
    of_head = {f"node:{address}": part}

    def resources(params: dict[str, Any]) -> tune.PlacementGroupFactory:
        own: list[dict[str, float]] = []
        with suppress(UserError):  # the trial will tell
            config = config_of(params)
            if config.workers.num_workers == 1 and is_ready(config):
                own = [worker_share(config.workers)]
        return tune.PlacementGroupFactory([*own, of_head])

    return tune.with_resources(tune.with_parameters(train, **arguments), resources)


def num_at_once(workers: WorkersConfig) -> int:
    """Return how many runs of these workers the cluster holds at once; at least 1."""
    return num_held(workers, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def num_held(workers: WorkersConfig, machines: Iterable[Mapping[str, float]]) -> int:
    """Return how many runs of these workers fit on machines at once; at least 1.

    ``machines`` are the resources of each, by Ray's names. A worker is on one machine, its share of
    a GPU on one GPU.
    """
    num_workers = sum(_num_workers_on(machine, workers) for machine in machines)
    return max(num_workers // workers.num_workers, 1)


def _num_workers_on(machine: Mapping[str, float], workers: WorkersConfig) -> int:
    by_cpus = int(machine.get("CPU", 0) // workers.cpus_per_worker)
    if not workers.use_gpu:
        return by_cpus
    per_gpu = int(1 / workers.gpus_per_worker + 1e-9)
    return min(by_cpus, int(machine.get("GPU", 0)) * per_gpu)


@contextmanager
def running_tune() -> Iterator[None]:
    """Silence Tune and its loggers, and release the CPUs and GPUs that its trials held."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = "1"  # sample no trial before it can start
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # else Ctrl-C looks like the end of the time
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with no_placement_group_left(), redirect_stdout(StringIO()):
        yield
