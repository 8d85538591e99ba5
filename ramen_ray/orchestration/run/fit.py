"""Train one configuration: prepare the data, run the workers, put everything into MLflow."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ray.train import UserCallback

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig, flatten
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.locks import in_use
from ramen_ray.errors import shown_path
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import check_resources
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.run.changes import TABLES
from ramen_ray.orchestration.run.checkpoints import keep_intact_checkpoints
from ramen_ray.orchestration.run.checks import check_clicks, check_config, check_vocabulary
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    Identity,
    RunDirectory,
    finished_run,
    open_run_directory,
    refuse_another_runs,
    started_from,
)
from ramen_ray.orchestration.run.loop import start_or_resume, train
from ramen_ray.orchestration.run.made_from import (
    check_meanwhile,
    edges_to_train,
    identity_of,
    note_carried,
    resolved,
)
from ramen_ray.orchestration.run.processes import (
    OnReport,
    Process,
    only_worker,
    train_in_all_workers,
)
from ramen_ray.orchestration.run.progress import shown_progress
from ramen_ray.orchestration.run.worker import evaluate_best, run_setup
from ramen_ray.tracking.runs import Run, tracking_uri

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerResult:
    """What a worker returns; the driver uses that of the first. Times are seconds since 1970."""

    # by row (``untrained``, ``trained``), then split, then metric name. With classifiers there are
    # also ``encoder``, ``classifier`` and ``both``
    metrics: dict[str, dict[str, dict[str, float]]]
    best_checkpoint: Path  # the best model's folder
    best_step: int  # the step after which it was written
    part: Part  # which part of its vectors answers best on the validation split
    trained_seconds: float  # time spent in steps, over all attempts
    waited_seconds: float  # time spent waiting for background tasks
    entered_at: float
    first_step_at: float


@dataclass(frozen=True)
class WorkerTask:
    """What a run's workers are sent; paths are folders that all machines can reach."""

    config: RunConfig
    prepared: Path
    edges: Path  # the graphs to train on
    run_directory: Path
    run: Run
    made_from: Identity  # as the driver has found it

    def train(self, process: Process) -> WorkerResult:
        """Train to the end in this process, then evaluate the best model and the untrained one."""
        entered_at = time.time()
        setup = run_setup(
            self.config, self.prepared, self.edges, self.run_directory, self.made_from, process
        )
        try:
            training = start_or_resume(setup, self.run)
            train(training)
        finally:
            for one in setup.background:
                one.cancel()
        for one in setup.background:
            one.keep_only_taken()
        setup.local.forget(setup.folder)
        best = training.checkpoints.best()
        metrics, part = evaluate_best(setup, best.folder)
        return WorkerResult(
            metrics,
            best.folder,
            best.step,
            part,
            training.progress.trained_seconds,
            sum(one.waited_s for one in setup.background),
            entered_at,
            training.first_step_at or entered_at,
        )


@dataclass(frozen=True)
class TrainResult:
    """A finished run; metrics are by row (``untrained``, ``trained``), split and name."""

    metrics: dict[str, dict[str, dict[str, float]]]
    encoder: Path  # the best one's folder
    run_directory: Path
    run: Run  # in MLflow
    started_from: str = "untrained"  # what tables call the row ``untrained``

    def rows(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the metrics of the encoder before and after, by what tables call them."""
        return {
            self.started_from: self.metrics["untrained"],
            "trained": self.metrics["trained"],
        }


def fit(
    config: RunConfig,
    parent: Run | None = None,
    callbacks: Sequence[UserCallback] = (),
    on_report: OnReport | None = None,
    expected: Identity | None = None,
) -> TrainResult:
    """Train a run, or resume one that was interrupted, and evaluate its best encoder.

    A finished run of the ``config``'s name is returned as it is.

    Args:
        config: what to train.
        parent: the MLflow run that this one is part of, if any; its progress is then not shown.
        callbacks: Ray Train's, called at every report.
        on_report: called at every report. If it is given, this process holds what the only worker
            needs, and trains itself.
        expected: what the run must be made from, to be compared with others.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, RunError, TrackingError: the input,
            the store or the cluster is not usable; no half-written files are left.
        DivergedError: losses or weights are no longer finite; no retriever is logged.
        DamagedError: a checkpoint is damaged while it is in use; the same call goes on without it.
    """
    config = resolved(config)
    dataset = Dataset(config.dataset)
    with in_use(dataset.path):
        return _fit_on(dataset, config, parent, callbacks, on_report, expected)


def _fit_on(
    dataset: Dataset,
    config: RunConfig,
    parent: Run | None,
    callbacks: Sequence[UserCallback],
    on_report: OnReport | None,
    expected: Identity | None,
) -> TrainResult:
    """Train on a dataset that does not change; see :func:`fit`."""
    made_from = identity_of(config, dataset)
    check_meanwhile(expected or made_from, made_from, dataset.path)
    output, is_nested = Path(config.output), parent is not None
    uri = tracking_uri(output) if parent is None else parent.uri
    if config.name is not None and (done := finished_run(config, made_from)) is not None:
        logger.info("finished already: %s; --name begins another run", shown_path(done.path))
        return _result_of(done, tracking_uri(output), config)
    tokenizer = check_config(config, dataset)
    with open_run_directory(config, dataset.name, made_from) as directory:
        for checkpoint in keep_intact_checkpoints(directory.path):
            refuse_another_runs(checkpoint.folder, config, made_from)
        run = directory.open_run(uri, config.experiment, output, parent)
        with run.closing(is_nested):
            run.log_first_artifact(directory.path / CONFIG_FILE)
            seconds: dict[str, float] = {}
            with _timed(seconds, "ray"):
                start_ray(for_ray_train=config.workers.num_workers > 1)
                if not is_nested:  # else its sweep or ablation did, whose other runs hold CPUs
                    check_resources(config.workers)
            logger.info(
                "data:    %s\nrun:     %s", *map(shown_path, (dataset.path, directory.path))
            )
            with _timed(seconds, "prepare"):
                data = prepare(dataset, output / "prepared", tokenizer)
            check_vocabulary(config, data)
            check_clicks(config, data)
            note_carried(config, dataset, directory.path)
            with _timed(seconds, "walk"):
                edges = edges_to_train(config, data)
            _log_inputs(run, config, dataset, data, made_from)
            task = WorkerTask(config, data.path, edges, directory.path, run, made_from)
            called = time.time()
            with nullcontext() if is_nested else shown_progress(directory.path):
                trained = (
                    train_in_all_workers(task.train, config.workers, directory.path, callbacks)
                    if on_report is None
                    else task.train(only_worker(on_report))
                )
            seconds["workers"] = trained.entered_at - called
            seconds["first_step"] = trained.first_step_at - trained.entered_at
            run.log_metrics({f"startup/{name}_s": s for name, s in seconds.items()})
            # imported here, so that training does not wait for what only its end needs
            from ramen_ray.orchestration.run.results import log_results

            log_results(task, trained, dataset, data, is_worker=on_report is not None)
        directory.note(
            finished=True,
            best_checkpoint=trained.best_checkpoint.name,
            part=trained.part,
            trained_seconds=trained.trained_seconds,
            waited_seconds=trained.waited_seconds,
            metrics=trained.metrics,
        )
    return _result_of(directory, run.uri, config)


def _result_of(done: RunDirectory, uri: str, config: RunConfig) -> TrainResult:
    encoder, run = done.best_checkpoint / ENCODER_FOLDER, Run(uri, done.notes["mlflow_run_id"])
    return TrainResult(done.notes["metrics"], encoder, done.path, run, started_from(config))


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started


def _log_inputs(
    run: Run, config: RunConfig, dataset: Dataset, data: Prepared, made_from: Identity
) -> None:
    statistics = data.metadata["statistics"]
    run.log_dataset(dataset.name, made_from["dataset"], dataset.path, statistics)
    parameters = {**flatten(config), **{f"dataset.{k}": v for k, v in statistics.items()}}
    tags = {f"made_from.{name}": of for name, of in made_from.items() if name != TABLES}
    run.log_parameters(parameters, {"dataset": data.metadata["name"], **tags})
