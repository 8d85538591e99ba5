"""Train one configuration: prepare the data, run the workers, put everything into MLflow."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, ScalingConfig, UserCallback
from ray.train import RunConfig as RayRunConfig
from ray.train.torch import TorchTrainer

from ramen_ray.config import RunConfig, flatten, with_absolute_paths
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.graph.walk import WalkSettings
from ramen_ray.method.training.checkpoints import ENCODER_FOLDER
from ramen_ray.orchestration.cluster.resources import check_resources, start_ray
from ramen_ray.orchestration.preparation.pipeline import prepare
from ramen_ray.orchestration.preparation.walks import walked_edges
from ramen_ray.orchestration.training.checks import check_config
from ramen_ray.orchestration.training.components import build_objective
from ramen_ray.orchestration.training.entry import WorkerTask, train_loop_per_worker
from ramen_ray.orchestration.training.final_evaluation import SCORE
from ramen_ray.orchestration.training.results import TrainResult, log_outcome
from ramen_ray.orchestration.training.run_directory import RunDirectory, open_run_directory
from ramen_ray.tracking.runs import (
    closing_run,
    log_metrics,
    log_parameters,
    open_run,
    tracking_uri,
)

logger = logging.getLogger(__name__)


def fit(
    config: RunConfig,
    parent_run_id: str | None = None,
    callbacks: Sequence[UserCallback] = (),
    uri: str | None = None,
) -> TrainResult:
    """Train, or go on with a run that was cut off, and evaluate its best encoder.

    Args:
        config: what to train.
        parent_run_id: the MLflow run that this one is part of; its workers then tell less.
        callbacks: of Ray Train, which hear of every report.
        uri: the MLflow store; None stands for :func:`tracking_uri`.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, RunError, TrackingError: the input,
            the store or the cluster is not usable; nothing half-written is left.
    """
    config = with_absolute_paths(config)
    dataset = Dataset(config.dataset)
    tokenizer = check_config(config, dataset)
    output = Path(config.output)
    with open_run_directory(config, dataset) as directory:
        uri = uri or tracking_uri(output)
        known = directory.facts.get("mlflow_run_id")
        run_id = open_run(uri, config.experiment, directory.name, output, known, parent_run_id)
        directory.note(mlflow_run_id=run_id)
        is_part = parent_run_id is not None
        with closing_run(uri, run_id, is_part):
            seconds: dict[str, float] = {}
            with _timed(seconds, "ray"):
                start_ray()
                if not is_part:  # the whole has checked; other parts hold CPUs meanwhile
                    check_resources(config.workers)
            logger.info("run %s: preparing %s", directory.name, dataset.path)
            with _timed(seconds, "prepare"):
                data = prepare(dataset, output / "prepared", tokenizer)
            with _timed(seconds, "walk"):
                edges = _edges(config, data)
            _log_inputs(uri, run_id, config, data)
            task = WorkerTask(
                config,
                str(data.path),
                str(edges),
                str(directory.path),
                uri,
                run_id,
                is_part=is_part,
            )
            called = time.time()
            outcome = _train(config, directory, task, callbacks)
            seconds["workers"] = outcome["entered_at"] - called
            seconds["first_step"] = outcome["first_step_at"] - outcome["entered_at"]
            result = TrainResult(
                outcome["metrics"],
                Path(outcome["best_checkpoint"]) / ENCODER_FOLDER,
                directory.path,
                uri,
                run_id,
            )
            log_metrics(uri, run_id, {f"startup/{name}_s": s for name, s in seconds.items()})
            log_outcome(config, result, outcome, dataset, data)
        directory.note(
            finished=True,
            best_checkpoint=result.encoder.parent.name,
            trained_seconds=outcome["trained_seconds"],
            waited_seconds=outcome["waited_seconds"],
            metrics=result.metrics,
        )
    return result


def _edges(config: RunConfig, data: Prepared) -> Path:
    """Return the folder of the graph to train on."""
    walk = config.walk
    if not walk.enabled:
        return data.path / "edges"
    settings = WalkSettings(
        walk.num_hops, walk.restart_probability, walk.max_anchor_degree, walk.top_k
    )
    walked = Path(config.output) / "walked"
    return walked_edges(data, build_objective(config).regularizers, settings, config.seed, walked)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started


def _train(
    config: RunConfig, directory: RunDirectory, task: WorkerTask, callbacks: Sequence[UserCallback]
) -> dict[str, Any]:
    workers = config.workers
    gpus = {"GPU": workers.gpus_per_worker} if workers.use_gpu else {}
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"task": task},
        scaling_config=ScalingConfig(
            num_workers=workers.num_workers,
            use_gpu=workers.use_gpu,
            resources_per_worker={"CPU": workers.cpus_per_worker, **gpus},
        ),
        run_config=RayRunConfig(
            name=directory.name,
            callbacks=list(callbacks),
            logging_config=LoggingConfig(log_level="WARNING"),
            storage_path=str(directory.path.parent),
            failure_config=FailureConfig(
                max_failures=workers.max_failures, controller_failure_limit=workers.max_failures
            ),
            checkpoint_config=CheckpointConfig(
                num_to_keep=1,
                checkpoint_score_attribute=SCORE,
                checkpoint_score_order="max",
            ),
        ),
    )
    return dict(trainer.fit().return_value)


def _log_inputs(uri: str, run_id: str, config: RunConfig, data: Prepared) -> None:
    statistics = data.metadata["statistics"]
    parameters = {**flatten(config), **{f"dataset.{k}": v for k, v in statistics.items()}}
    log_parameters(uri, run_id, parameters, {"dataset": data.metadata["name"]})
