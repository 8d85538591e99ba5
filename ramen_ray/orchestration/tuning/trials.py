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
from io import StringIO
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.train import Checkpoint
from ray.tune.experiment import Trial
from ray.tune.integration.ray_train import TuneReportCallback

from ramen_ray.config import RunConfig, WorkersConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import UserError
from ramen_ray.orchestration.cluster.resources import (
    no_placement_group_left,
    user_errors,
    worker_share,
)
from ramen_ray.orchestration.prepare.pipeline import prepare, prepared_folder
from ramen_ray.orchestration.runs.components import encoder_tokenizer
from ramen_ray.orchestration.runs.identity import check_meanwhile
from ramen_ray.orchestration.runs.run_directory import Identity, RunError
from ramen_ray.orchestration.training.results import TrainResult, finished_result
from ramen_ray.orchestration.training.run import fit, is_ready, make_ready
from ramen_ray.orchestration.training.trainer import START_TIMEOUT
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

HEAD = "node:__internal_head__"
SHOWN = ("P@1", "R@10")
NAME = "name"
SUMMARY = "summary"
THREAD_TIMEOUT = "TUNE_FUNCTION_THREAD_TIMEOUT_S"
"""How long Tune waits for a trial that it has stopped, before it uses the process again."""
STOPPED_EARLY = "stopped early"
OUT_OF_TIME = "out of time"
FAILED = "failed: "
A_DAY_S = 86_400


def run_trials(
    configs: Mapping[str, RunConfig],
    parent: Run,
    folder: Path,
    expected: Mapping[str, Identity],
) -> dict[str, str]:
    """Train every configuration with :func:`fit`, as parts of one MLflow run.

    If a run fails, the others go on.

    Args:
        configs: configurations by trial name; paths are absolute, all have the same workers.
        parent: the parent of all runs in MLflow.
        folder: where Tune keeps its own files while trials run; all machines can reach it.
        expected: what all runs must be made from, by the path of their dataset.

    Returns:
        The errors, one line each, by the name of the failed trial.
    """
    if not configs:
        return {}
    workers = next(iter(configs.values())).workers
    for config in configs.values() if workers.num_workers == 1 else ():
        with suppress(UserError):  # its trial will tell
            if not is_ready(config):
                make_ready(config)
    with tempfile.TemporaryDirectory(prefix=".tune-", dir=folder) as storage, running_tune():
        ends = Ends(Path(storage) / "ends", len(configs))
        runnable = trainable(
            _train_one,
            num_at_once(workers),
            lambda params: configs[params[NAME]],
            configs=dict(configs),
            parent=parent,
            ends=ends,
            expected=dict(expected),
        )
        tuner = tune.Tuner(
            runnable,
            param_space={NAME: tune.grid_search(list(configs))},
            tune_config=tune.TuneConfig(
                trial_name_creator=name_of,
                trial_dirname_creator=name_of,
                reuse_actors=True,  # they have imported everything
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=storage,
                callbacks=[ends],
                failure_config=tune.FailureConfig(max_failures=workers.max_failures),
                verbose=0,
            ),
        )
        try:
            tuner.fit()
        finally:
            parent.close_children_left_open()
        if ends.count() < len(configs):
            raise KeyboardInterrupt  # Tune treats it as a pause
        return ends.errors()


def _train_one(
    params: dict[str, Any],
    configs: Mapping[str, RunConfig],
    parent: Run,
    ends: "Ends",
    expected: Mapping[str, Identity],
) -> None:
    config = configs[params[NAME]]
    with ends.kept_of(params[NAME]):
        tune.report({SUMMARY: train_in_trial(config, parent, expected[config.dataset])[0]})


def train_in_trial(
    config: RunConfig, parent: Run, expected: Identity, metric: str | None = None
) -> tuple[str, TrainResult]:
    """Train within a Tune trial, if not done yet; returns a line about the result, and the result.

    The data are prepared in a separate task: within a trial, Ray Data's tasks would be limited to
    the trial's own resources, which include no CPU then.

    Args:
        config: the run's.
        parent: the MLflow run that it is part of.
        expected: what it must be made from.
        metric: what is reported to Tune, at each validation, by its name in reports; None for
            nothing.
    """
    logging.getLogger("ramen_ray").setLevel(logging.ERROR)
    os.environ.setdefault(START_TIMEOUT, str(A_DAY_S))  # if a machine is lost, until others end
    os.environ.setdefault(THREAD_TIMEOUT, "60")  # for the end of a background task
    started = time.monotonic()
    dataset, cache = Dataset(config.dataset), Path(config.output) / "prepared"
    check_meanwhile(expected, {**expected, "dataset": dataset.fingerprint})  # before it is prepared
    tokenizer = encoder_tokenizer(config.encoder)
    if not prepared_folder(dataset, cache, tokenizer).is_dir():
        apart = ray.remote(prepare).options(num_cpus=0, scheduling_strategy="DEFAULT")
        with user_errors():
            ray.get(apart.remote(dataset, cache, tokenizer))
    result = finished_result(config, expected) or _fit(config, parent, expected, metric)
    metrics = result.metrics["trained"]["test"]
    figures = ", ".join(f"{name} {100 * metrics[name]:.2f}" for name in SHOWN)
    return f"test {figures} ({time.monotonic() - started:.0f} s)", result


def _fit(config: RunConfig, parent: Run, expected: Identity, metric: str | None) -> TrainResult:
    if "CPU" in ray.get_runtime_context().get_assigned_resources():

        def on_report(metrics: dict[str, Any]) -> None:
            if metric in metrics:
                tune.report(metrics)

        return fit(config, parent, on_report=on_report, expected=expected)
    callbacks = [] if metric is None else [_ReportValidations(metric)]
    return fit(config, parent, callbacks, expected=expected)


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

    Each trial takes a part of the head node's own resource. This also limits the trials that a
    restored search runs again; a searcher's own limit does not. A trial that trains in its own
    process takes what a worker needs besides. One that still needs other processes does not, or
    there might be no CPU left for them; nor does one that waits for its workers. All trials share
    one copy of the arguments.

    Args:
        train: runs in each trial.
        at_once: the most trials at a time.
        config_of: returns the configuration of a trial's run; ``train`` must train that.
        arguments: more arguments of ``train``.
    """
    # Ray Train's own actors use HEAD, so take the other resource name of the same machine.
    head = next(node for node in ray.nodes() if HEAD in node["Resources"])
    part = 10_000 // at_once / 10_000  # Ray counts in units of 1/10,000, and would round up
    of_head = {f"node:{head['NodeManagerAddress']}": part}

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

    Args:
        workers: the workers of one run. Each is on one machine, its share of a GPU on one GPU.
        machines: the resources of each machine, by Ray's names.
    """
    num_workers = sum(_num_workers_on(machine, workers) for machine in machines)
    return max(num_workers // workers.num_workers, 1)


def _num_workers_on(machine: Mapping[str, float], workers: WorkersConfig) -> int:
    by_cpus = int(machine.get("CPU", 0) // workers.cpus_per_worker)
    if not workers.use_gpu:
        return by_cpus
    per_gpu = int(1 / workers.gpus_per_worker + 1e-9)
    return min(by_cpus, int(machine.get("GPU", 0)) * per_gpu)


def name_of(trial: Trial) -> str:
    """Return a trial's name."""
    return str(trial.config.get(NAME, trial.trial_id))


@contextmanager
def running_tune() -> Iterator[None]:
    """Silence Tune and its loggers, and release the CPUs and GPUs that its trials held.

    :class:`Ends` logs what matters.
    """
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = "1"  # sample no trial before it can start
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # else Ctrl-C looks like the end of the time
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with no_placement_group_left(), redirect_stdout(StringIO()):
        yield


class Ends(tune.Callback):
    """Records and logs how each trial ended, in files that outlive the sweep's process.

    Attributes:
        folder: folder of the files, one per ended trial, named after it; all machines can reach it.
        total: number of trials expected.
    """

    def __init__(self, folder: Path, total: int) -> None:
        """Make the folder."""
        self.folder, self.total = folder, total
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def kept_of(self, name: str) -> Iterator[None]:
        """Keep the message of an error that ends the trial, for :meth:`on_trial_error`.

        Tune starts each trial again that fails; one whose process did not die ends at once then.
        """
        file = self._message_of(name)
        if file.exists():
            raise RunError(file.read_text())
        try:
            yield
        except Exception as error:
            message = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            file.write_text(message[0])
            raise

    def _message_of(self, name: str) -> Path:
        return self.folder / f".{name}"

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Let a trial whose process did not die be started again but once."""
        if self._message_of(name_of(trial)).exists():
            trial.run_metadata.num_failures = trial.max_failures

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record a trial that finished or was stopped early."""
        self._end(name_of(trial), trial.last_result.get(SUMMARY, STOPPED_EARLY))

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record why a trial failed."""
        file = self._message_of(name_of(trial))
        error = (
            file.read_text()
            if file.exists()
            else f"its process has died {trial.max_failures + 1} times, once more than "
            f"workers.max_failures allows; see whether its machine has enough memory"
        )
        trial.run_metadata.num_failures = 0  # a sweep that is resumed tries it again
        self._end(name_of(trial), f"{FAILED}{error}")

    def _end(self, name: str, end: str) -> None:
        is_repeated = end.startswith(FAILED) and end.removeprefix(FAILED) in self.errors().values()
        (self.folder / name).write_text(end)
        if is_repeated:
            return
        logger.info("%d/%d %s: %s", self.count(), self.total, name, end)

    def count(self) -> int:
        """Return how many trials have ended."""
        return len(list(self.folder.glob("[!.]*")))

    def forget_failures(self) -> None:
        """Forget the failures of trials, so that these count as not ended."""
        for name in self.errors():
            (self.folder / name).unlink()
        for file in self.folder.glob(".*"):
            file.unlink()

    def out_of_time(self, names: Iterable[str]) -> None:
        """Record the trials that the sweep's time limit stopped."""
        for name in names:
            if not (self.folder / name).exists():
                self._end(name, OUT_OF_TIME)

    def by_trial(self) -> dict[str, str]:
        """Return how trials ended, one line each, by name."""
        return {file.name: file.read_text() for file in sorted(self.folder.glob("[!.]*"))}

    def errors(self) -> dict[str, str]:
        """Return the errors of failed trials, one line each, by name."""
        ends = self.by_trial().items()
        return {name: end.removeprefix(FAILED) for name, end in ends if end.startswith(FAILED)}
