"""Train one configuration: prepare the data, run the workers, put everything into MLflow."""

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, ScalingConfig, UserCallback
from ray.train import RunConfig as RayRunConfig
from ray.train.torch import TorchTrainer

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig, flatten
from ramen_ray.data.dataset import Dataset, DatasetError
from ramen_ray.data.predictions import shown_ads, spell_out
from ramen_ray.data.prepared import Prepared
from ramen_ray.data.validation.structure import check_structure
from ramen_ray.method.checkpoints import ENCODER_FOLDER
from ramen_ray.method.evaluation import METRICS
from ramen_ray.method.index import FEWEST_IVF_PQ_ADS
from ramen_ray.method.pretrained import load_config, load_tokenizer, text_tokenizer
from ramen_ray.method.texts import TextTokenizer
from ramen_ray.method.walk import WalkSettings
from ramen_ray.orchestration.bases import cluster_schedule
from ramen_ray.orchestration.cluster import check_resources, start_ray
from ramen_ray.orchestration.components import build_objective
from ramen_ray.orchestration.entry import WorkerTask, train_loop_per_worker
from ramen_ray.orchestration.final_evaluation import SCORE
from ramen_ray.orchestration.pipeline import prepare
from ramen_ray.orchestration.retriever import log_run_retriever
from ramen_ray.orchestration.run_directory import (
    CONFIG_FILE,
    RunDirectory,
    finished_run,
    open_run_directory,
)
from ramen_ray.orchestration.walks import walked_edges
from ramen_ray.tracking.report import log_predictions, write_plots
from ramen_ray.tracking.runs import (
    closing_run,
    log_artifacts,
    log_metrics,
    log_parameters,
    open_run,
    tracking_uri,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What a finished run leaves behind.

    Attributes:
        metrics: by row (``untrained``, ``trained``), then split, then metric name.
        encoder: folder of the best encoder.
        run_directory: folder with configuration and checkpoints.
        tracking_uri: the MLflow store.
        mlflow_run_id: the run in it.
    """

    metrics: dict[str, dict[str, dict[str, float]]]
    encoder: Path
    run_directory: Path
    tracking_uri: str
    mlflow_run_id: str


def fit(
    config: RunConfig, parent_run_id: str | None = None, callbacks: Sequence[UserCallback] = ()
) -> TrainResult:
    """Train, or go on with a run that was cut off, and evaluate its best encoder.

    Args:
        config: what to train.
        parent_run_id: the MLflow run that this one is part of; its workers then tell less.
        callbacks: of Ray Train, which hear of every report.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, RunError, TrackingError: the input,
            the store or the cluster is not usable; nothing half-written is left.
    """
    config = with_absolute_paths(config)
    dataset = Dataset(config.dataset)
    tokenizer = check_config(config, dataset)
    output = Path(config.output)
    with open_run_directory(config, dataset) as directory:
        uri = tracking_uri(output)
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
            _log_outcome(config, result, outcome, dataset, data)
        directory.note(
            finished=True,
            best_checkpoint=result.encoder.parent.name,
            trained_seconds=outcome["trained_seconds"],
            waited_seconds=outcome["waited_seconds"],
            metrics=result.metrics,
        )
    return result


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Make paths absolute, for Ray's workers have another working directory."""
    paths = {
        "dataset": str(Path(config.dataset).absolute()),
        "output": str(Path(config.output).absolute()),
    }
    return config.model_copy(update=paths)


def finished_result(config: RunConfig) -> TrainResult | None:
    """Return what the run of this name left behind if it is finished.

    Raises:
        RunError: it has another configuration or other data.
    """
    directory = finished_run(config, Dataset(config.dataset))
    if directory is None:
        return None
    facts = directory.facts
    encoder = directory.path / facts["best_checkpoint"] / ENCODER_FOLDER
    uri = tracking_uri(Path(config.output))
    return TrainResult(facts["metrics"], encoder, directory.path, uri, facts["mlflow_run_id"])


def check_config(config: RunConfig, dataset: Dataset) -> TextTokenizer:
    """Check what can be known before anything is started, and return the encoder's tokenizer.

    Raises:
        DatasetError: a table is missing or empty, or there are fewer train queries than a batch.
        ConfigError: an anchor set or the selection metric does not exist, training ends before
            pruning or the base's hard negatives begin, or clusters outgrow a batch or are to be
            larger from an epoch on in which none are made.
        EncoderError: encoder or tokenizer cannot be found.
    """
    num_rows = check_structure(dataset)
    for side in ("lambda_x", "lambda_z"):
        for name in getattr(config.regularization, side):
            if name not in dataset.anchor_sets:
                raise ConfigError(
                    f"regularization.{side}.{name}: the dataset {dataset.path} has no anchor set "
                    f"{name!r}; it has {', '.join(dataset.anchor_sets) or 'none'}"
                )
    batch = config.training.global_batch_size
    if num_rows["queries/train"] < batch:
        raise DatasetError(
            f"{dataset.path} has {num_rows['queries/train']} train queries, fewer than "
            f"training.global_batch_size {batch}"
        )
    if config.training.selection_metric not in METRICS:
        raise ConfigError(
            f"training.selection_metric {config.training.selection_metric!r} is not one of "
            f"{', '.join(METRICS)}"
        )
    limit = getattr(load_config(config.encoder.pretrained), "max_position_embeddings", None)
    too_long = limit is not None and config.encoder.max_length > limit
    if config.encoder.kind == "transformer" and too_long:
        raise ConfigError(
            f"encoder.max_length {config.encoder.max_length} is more than the {limit} positions "
            f"of {config.encoder.pretrained!r}"
        )
    _check_pruning(config)
    _check_base(config)
    if config.index.kind == "ivf_pq" and num_rows["ads"] < FEWEST_IVF_PQ_ADS:
        raise ConfigError(
            f"index.kind ivf_pq learns its cells from at least {FEWEST_IVF_PQ_ADS} ads; "
            f"{dataset.path} has {num_rows['ads']}, for which flat is best"
        )
    return encoder_tokenizer(config.encoder)


def _check_pruning(config: RunConfig) -> None:
    pruning, epochs = config.pruning, config.training.epochs
    meanwhile = 1 if pruning.mode == "asynchronous" else 0  # the epoch in which it is pruned
    if pruning.mode != "never" and pruning.warmup_epochs + meanwhile >= epochs:
        raise ConfigError(
            f"training.epochs {epochs} end before a graph that is pruned after "
            f"pruning.warmup_epochs {pruning.warmup_epochs} is trained on; shorten the warm-up, "
            f"or set pruning.mode to never"
        )


def _check_base(config: RunConfig) -> None:
    base, epochs = config.base, config.training.epochs
    meanwhile = 1 if base.refresh_mode == "asynchronous" else 0
    if base.kind == "ance" and base.refresh_every + meanwhile >= epochs:
        raise ConfigError(
            f"training.epochs {epochs} end before hard negatives are drawn from shortlists that "
            f"are made after base.refresh_every {base.refresh_every}; make them more often"
        )
    if base.kind == "ngame":
        _check_clusters(config)


def _check_clusters(config: RunConfig) -> None:
    base, epochs = config.base, config.training.epochs
    schedule = cluster_schedule(config)
    if base.first_clustered_epoch >= epochs:
        raise ConfigError(
            f"training.epochs {epochs} end before base.first_clustered_epoch "
            f"{base.first_clustered_epoch}; begin clusters earlier"
        )
    for epoch in base.double_cluster_size_at:
        if epoch < epochs and not schedule.is_due(epoch):
            raise ConfigError(
                f"base.double_cluster_size_at {epoch}: clusters are made every base.refresh_every "
                f"{base.refresh_every} epochs from base.first_clustered_epoch "
                f"{base.first_clustered_epoch} on, and not then"
            )
    largest, batch = schedule.size_at(epochs - 1), config.training.global_batch_size
    if largest > batch:
        raise ConfigError(
            f"base.cluster_size {base.cluster_size} doubles to {largest}, more than "
            f"training.global_batch_size {batch} holds; double it at fewer epochs"
        )


def encoder_tokenizer(encoder: EncoderConfig) -> TextTokenizer:
    """Load the tokenizer that goes with an encoder; a bag of tokens takes no special ones."""
    special = encoder.kind == "transformer"
    return text_tokenizer(load_tokenizer(encoder.pretrained), encoder.max_length, special)


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


def _log_outcome(
    config: RunConfig,
    result: TrainResult,
    outcome: dict[str, Any],
    dataset: Dataset,
    data: Prepared,
) -> None:
    uri, run_id, metrics = result.tracking_uri, result.mlflow_run_id, result.metrics
    model_id, named = log_run_retriever(config, dataset, data, result.encoder, uri, run_id)
    named |= {"best/step": outcome["best_step"]}
    named |= {name: outcome[name] for name in ("trained_seconds", "waited_seconds")}
    for split, values in metrics["untrained"].items():
        named |= _prefixed(f"untrained/{split}/", values)
    for split, values in metrics["trained"].items():
        named |= _prefixed("best/validation/" if split == "validation" else f"{split}/", values)
    log_metrics(uri, run_id, named, model_id=model_id)
    log_predictions(uri, run_id, _sample_predictions(dataset, outcome["sample"]))
    with tempfile.TemporaryDirectory() as folder:
        plots = Path(folder)
        write_plots(plots, uri, run_id, metrics["untrained"]["test"], metrics["trained"]["test"])
        log_artifacts(uri, run_id, plots, "plots")
    log_artifacts(uri, run_id, result.run_directory / CONFIG_FILE)


def _sample_predictions(dataset: Dataset, sample: dict[str, Any]) -> dict[str, list[Any]]:
    """Spell out the sample, one row per prediction, with hits marked."""
    queries = dataset.rows_with_ids("queries/test", sample["queries"])
    ad_ids, scores = np.array(sample["ads"]), np.array(sample["scores"], dtype=np.float32)
    ads = dataset.rows_with_ids("ads", shown_ads(ad_ids))
    clicked = queries["ad_ids"].to_pylist()
    hits = [
        "hit" if ad in clicks else ""
        for clicks, found in zip(clicked, sample["ads"], strict=True)
        for ad in found
        if ad >= 0
    ]
    rows = spell_out(queries, ads, (ad_ids, scores))
    return {**rows.to_pydict(), "hit": hits}


def _prefixed(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    return {prefix + name: value for name, value in metrics.items()}
