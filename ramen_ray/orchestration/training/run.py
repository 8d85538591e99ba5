"""Train one configuration: prepare the data, run the workers, put everything into MLflow."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ray.train import CheckpointConfig, UserCallback

from ramen_ray.config import RunConfig, flatten, with_absolute_paths
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.links import LINKS_OF
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.orchestration.cluster.resources import check_resources, start_ray
from ramen_ray.orchestration.prepare.pipeline import prepare, prepared_folder
from ramen_ray.orchestration.runs.components import build_objective, encoder_tokenizer
from ramen_ray.orchestration.runs.identity import check_meanwhile, identity_of
from ramen_ray.orchestration.runs.run_directory import (
    CONFIG_FILE,
    Identity,
    RunDirectory,
    open_run_directory,
)
from ramen_ray.orchestration.runs.task import WorkerResult, WorkerTask
from ramen_ray.orchestration.training.checks import check_clicks, check_config
from ramen_ray.orchestration.training.one_worker import train_in_one_worker
from ramen_ray.orchestration.training.results import TrainResult, log_results
from ramen_ray.orchestration.training.trainer import run_in_workers
from ramen_ray.orchestration.worker.entry import train_loop_per_worker
from ramen_ray.orchestration.worker.host import SCORE, OnReport, OwnProcess
from ramen_ray.orchestration.worker.live_progress import shown_progress
from ramen_ray.orchestration.worker.resuming import keep_intact_checkpoints
from ramen_ray.tracking.runs import Run, open_run, tracking_uri

if TYPE_CHECKING:
    from ramen_ray.method.graph.walk import WalkSettings

BEST_AND_LAST = CheckpointConfig(
    num_to_keep=1, checkpoint_score_attribute=SCORE, checkpoint_score_order="max"
)

logger = logging.getLogger(__name__)


def fit(
    config: RunConfig,
    parent: Run | None = None,
    callbacks: Sequence[UserCallback] = (),
    on_report: OnReport | None = None,
    expected: Identity | None = None,
) -> TrainResult:
    """Train a run, or resume one that was interrupted, and evaluate its best encoder.

    Args:
        config: what to train.
        parent: the MLflow run that this one is part of, if any; its progress is then not shown.
        callbacks: Ray Train callbacks, called at every report.
        on_report: given by a process that holds what the only worker needs, to train in it without
            Ray Train; called at every report.
        expected: what the run must be made from, to be compared with others.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, RunError, TrackingError: the input,
            the store or the cluster is not usable; no half-written files are left.
        DivergedError: losses or weights are no longer finite; no retriever is logged.
        DamagedError: a checkpoint is damaged while it is in use; the same call goes on without it.
    """
    config = with_absolute_paths(config)
    dataset = Dataset(config.dataset)
    made_from = identity_of(config, dataset)
    check_meanwhile(expected or made_from, made_from)
    tokenizer = check_config(config, dataset)
    output = Path(config.output)
    with open_run_directory(config, dataset.name, made_from) as directory:
        uri = tracking_uri(output) if parent is None else parent.uri
        known = directory.notes.get("mlflow_run_id")
        run = open_run(uri, config.experiment, directory.name, output, known, parent)
        directory.note(mlflow_run_id=run.id)
        keep_intact_checkpoints(directory.path)
        with run.closing(nested := parent is not None):
            run.log_first_artifact(directory.path / CONFIG_FILE)
            seconds: dict[str, float] = {}
            with _timed(seconds, "ray"):
                start_ray(for_ray_train=config.workers.num_workers > 1)
                if not nested:  # else its sweep or ablation did, whose other runs hold CPUs
                    check_resources(config.workers)
            logger.info("data:    %s", dataset.path)
            logger.info("run:     %s", directory.path)
            with _timed(seconds, "prepare"):
                data = prepare(dataset, output / "prepared", tokenizer)
            check_clicks(config, data)
            with _timed(seconds, "walk"):
                edges = _edges(config, data)
            _log_inputs(run, config, data, made_from)
            task = WorkerTask(
                config,
                str(data.path),
                str(edges),
                str(directory.path),
                run,
                made_from,
            )
            called = time.time()
            with nullcontext() if nested else shown_progress(directory.path):
                trained = _train(task, directory, parent, callbacks, on_report)
            seconds |= {
                "workers": trained.entered_at - called,
                "first_step": trained.first_step_at - trained.entered_at,
            }
            result = TrainResult(
                trained.evaluation.metrics,
                Path(trained.evaluation.best_checkpoint) / ENCODER_FOLDER,
                directory.path,
                run,
            )
            run.log_metrics({f"startup/{name}_s": s for name, s in seconds.items()})
            log_results(config, result, trained, dataset, data, is_worker=on_report is not None)
        directory.note(
            finished=True,
            best_checkpoint=result.encoder.parent.name,
            part=trained.evaluation.part,
            trained_seconds=trained.trained_seconds,
            waited_seconds=trained.waited_seconds,
            metrics=result.metrics,
            **{LINKS_OF: dataset.metadata.get(LINKS_OF)},
        )
    return result


def _train(
    task: WorkerTask,
    directory: RunDirectory,
    parent: Run | None,
    callbacks: Sequence[UserCallback],
    on_report: OnReport | None,
) -> WorkerResult:
    if on_report is not None:
        from ramen_ray.orchestration.worker.loop import run_worker

        return run_worker(task, OwnProcess(directory.path, on_report))
    if task.config.workers.num_workers == 1 and parent is None:
        return train_in_one_worker(task)
    trained: WorkerResult = run_in_workers(
        train_loop_per_worker, task, task.config.workers, directory, BEST_AND_LAST, callbacks
    )
    return trained


def make_ready(config: RunConfig) -> None:
    """Do what a run needs other processes for before it trains: prepare its data, walk its graph.

    Raises:
        DatasetError, EncoderError, ClusterError: the data are not usable, or a process has died.
    """
    dataset, tokenizer = Dataset(config.dataset), encoder_tokenizer(config.encoder)
    _edges(config, prepare(dataset, Path(config.output) / "prepared", tokenizer))


def is_ready(config: RunConfig) -> bool:
    """Say whether a run needs no other process before it trains; see :func:`make_ready`.

    Raises:
        DatasetError, EncoderError: the dataset or the encoder is missing.
    """
    dataset, tokenizer = Dataset(config.dataset), encoder_tokenizer(config.encoder)
    data = prepared_folder(dataset, Path(config.output) / "prepared", tokenizer)
    if not data.is_dir():
        return False
    if not config.walk.enabled:
        return True
    from ramen_ray.orchestration.prepare.walks import is_walked

    return is_walked(*_walk(config, Prepared(data)))


def _edges(config: RunConfig, data: Prepared) -> Path:
    """Return the folder of the graph to train on."""
    if not config.walk.enabled:
        return data.path / "edges"
    from ramen_ray.orchestration.prepare.walks import walked_edges

    return walked_edges(*_walk(config, data))


def _walk(
    config: RunConfig, data: Prepared
) -> "tuple[Prepared, list[Regularizer], WalkSettings, int, Path]":
    """Return what :func:`walked_edges` takes."""
    from ramen_ray.method.graph.walk import WalkSettings  # importing numba takes half a second

    walk = config.walk
    settings = WalkSettings(
        walk.num_hops, walk.restart_probability, walk.max_anchor_degree, walk.top_k
    )
    regularizers, walked = build_objective(config).regularizers, Path(config.output) / "walked"
    return data, regularizers, settings, config.seed, walked


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started


def _log_inputs(run: Run, config: RunConfig, data: Prepared, made_from: Identity) -> None:
    statistics = data.metadata["statistics"]
    parameters = {**flatten(config), **{f"dataset.{k}": v for k, v in statistics.items()}}
    tags = {f"made_from.{name}": value for name, value in made_from.items()}
    run.log_parameters(parameters, {"dataset": data.metadata["name"], **tags})
