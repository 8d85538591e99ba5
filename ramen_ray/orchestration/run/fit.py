"""Train one configuration: prepare the data, run the workers, put everything into MLflow."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ramen_ray.config import RunConfig, WorkersConfig, flatten
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import in_use
from ramen_ray.errors import shown_path
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import check_resources
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    TABLES,
    RunDirectory,
    keep_intact_checkpoints,
    started_from,
)
from ramen_ray.orchestration.run.identity import (
    Inputs,
    finished_run,
    open_run_directory,
    refuse_another_runs,
)
from ramen_ray.orchestration.run.inputs import (
    check_config,
    edges_to_train,
    note_carried,
    prepared_data,
)
from ramen_ray.orchestration.run.processes import Train, train_in_all_workers
from ramen_ray.orchestration.run.worker import Metrics, WorkerResult, WorkerTask
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.runs import Run, prefixed

logger = logging.getLogger(__name__)

RunWorkers = Callable[[Train[WorkerResult], WorkersConfig, Path], WorkerResult]
"""Trains in a run's workers, as :func:`train_in_all_workers` does."""


@dataclass(frozen=True)
class TrainResult:
    """A finished run."""

    metrics: Metrics  # rows are ``untrained`` and ``trained``
    encoder: Path  # the best one's folder
    run_directory: Path
    run: Run  # in MLflow
    started_from: str = "untrained"  # what tables call the row ``untrained``

    def rows(self) -> Metrics:
        """Return the metrics of the encoder before and after, by what tables call them."""
        return {
            self.started_from: self.metrics["untrained"],
            "trained": self.metrics["trained"],
        }


def fit(config: RunConfig) -> TrainResult:
    """Train a run, or resume one that was interrupted, and evaluate its best encoder.

    A finished run of the ``config``'s name is returned as it is.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, RunError, TrackingError: the input,
            the store or the cluster is not usable; no half-written files are left.
        DivergedError: losses or weights are no longer finite; no retriever is logged.
        DamagedError: a checkpoint is damaged while it is in use; the same call goes on without it.
    """
    return fit_on(Inputs.of(config), train_in_all_workers)


def fit_on(inputs: Inputs, run_workers: RunWorkers, parent: Run | None = None) -> TrainResult:
    """Train a run on an opened dataset, which others cannot change meanwhile; see :func:`fit`.

    The ``parent`` in MLflow has seen to Ray's resources.
    """
    config = inputs.config
    dataset = inputs.dataset
    output = Path(config.output)
    uri = tracking_uri(output) if parent is None else parent.uri
    if config.name is not None and (done := finished_run(inputs)) is not None:
        logger.info("finished already: %s; --name begins another run", shown_path(done.path))
        return _result_of(done, tracking_uri(output), config)
    check_config(config, dataset)
    with in_use(dataset.path), open_run_directory(inputs) as directory:
        for checkpoint in keep_intact_checkpoints(directory.path):
            refuse_another_runs(checkpoint, inputs)
        run = directory.open_run(uri, config.experiment, output, parent)
        with run.closing(nested=parent is not None):
            run.log_first_artifact(directory.path / CONFIG_FILE)
            opened_at = time.time()
            start_ray(for_ray_train=config.workers.num_workers > 1)
            if parent is None:
                check_resources(config.workers)
            logger.info(
                "data:    %s\nrun:     %s", *map(shown_path, (dataset.path, directory.path))
            )
            data = prepared_data(config, dataset)
            note_carried(inputs, directory.path)
            edges = edges_to_train(config, data)
            _log_inputs(run, inputs, data)
            task = WorkerTask(inputs, data.path, edges, directory.path, run)
            trained = run_workers(task.train, config.workers, directory.path)
            run.log_metrics({"startup_s": trained.first_step_at - opened_at})
            # imported here, so that training does not wait for what only its end needs
            from ramen_ray.orchestration.run.results import log_results

            log_results(task, trained, data)
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
    encoder = done.best_checkpoint / ENCODER_FOLDER
    run = Run(uri, done.notes["mlflow_run_id"])
    return TrainResult(done.notes["metrics"], encoder, done.path, run, started_from(config))


def _log_inputs(run: Run, inputs: Inputs, data: Prepared) -> None:
    made_from = inputs.made_from
    statistics = data.metadata["statistics"]
    run.log_dataset(inputs.dataset.name, made_from["dataset"], inputs.dataset.path, statistics)
    parameters = flatten(inputs.config) | prefixed("dataset.", statistics)
    tags = {f"made_from.{name}": part for name, part in made_from.items() if name != TABLES}
    run.log_parameters(parameters, {"dataset": data.metadata["name"], **tags})
