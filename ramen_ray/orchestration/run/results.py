"""Results of a finished run, in its folder and in MLflow."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.predictions import shown_ads, spell_out
from ramen_ray.data.store.whole_files import scratch_folder
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.orchestration.run.identity import check_meanwhile, identity_of
from ramen_ray.orchestration.run.directory import Identity, finished_run, is_finished
from ramen_ray.orchestration.run.task import WorkerResult
from ramen_ray.tracking.runs import Run, tracking_uri
from ramen_ray.tracking.step_logger import StepLogger

SINCE_IT_BEGAN = "since the run began; put it back, and run the same command again"


@dataclass(frozen=True)
class TrainResult:
    """Results of a finished run.

    Attributes:
        metrics: by row (``untrained``, ``trained``), then split, then metric name.
        encoder: folder of the best encoder.
        run_directory: folder with configuration and checkpoints.
        run: the run in MLflow.
    """

    metrics: dict[str, dict[str, dict[str, float]]]
    encoder: Path
    run_directory: Path
    run: Run


def finished_result(config: RunConfig, expected: Identity) -> TrainResult | None:
    """Return the results of the run of this name, or None if it is not finished.

    Args:
        config: the run's.
        expected: what the run must be made from, to be compared with others.

    Raises:
        RunError: it has another configuration or other data, or something has changed meanwhile.
    """
    if not is_finished(config):
        return None
    made_from = identity_of(config, Dataset(config.dataset))
    check_meanwhile(expected, made_from)
    directory = finished_run(config, made_from)
    if directory is None:
        return None
    notes = directory.notes
    encoder = directory.path / notes["best_checkpoint"] / ENCODER_FOLDER
    run = Run(tracking_uri(Path(config.output)), notes["mlflow_run_id"])
    return TrainResult(notes["metrics"], encoder, directory.path, run)


def log_results(
    config: RunConfig,
    result: TrainResult,
    trained: WorkerResult,
    dataset: Dataset,
    data: Prepared,
    is_worker: bool = False,
) -> None:
    """Log the retriever, the figures, sample predictions and plots of a finished run.

    Args:
        config: the run's.
        result: the run's results.
        trained: what its first worker returned.
        dataset: the dataset it was trained on.
        data: the same dataset, prepared.
        is_worker: whether this process holds what a worker needs.

    Raises:
        DatasetError: the dataset has changed since the run began; no retriever is logged.
    """
    # imported here, so that training does not wait for what only its end needs
    from ramen_ray.orchestration.run.results import write_run_retriever
    from ramen_ray.reports.run import write_plots
    from ramen_ray.tracking.retriever import NAME as RETRIEVER

    run, metrics = result.run, result.metrics
    StepLogger(run, result.run_directory).send_unsent()
    best = result.encoder.parent, trained.evaluation.part
    with scratch_folder(result.run_directory / ".retriever") as aside:
        with dataset.unchanged(SINCE_IT_BEGAN):
            sample = _sample_predictions(dataset, trained.evaluation.sample)
            folder = aside / RETRIEVER
            retriever = write_run_retriever(folder, config, dataset, data, best, is_worker)
        model_id = retriever.log(run)
    named = {
        **retriever.figures,
        "best/step": trained.evaluation.best_step,
        "trained_seconds": trained.trained_seconds,
        "waited_seconds": trained.waited_seconds,
    }
    for split, values in metrics["untrained"].items():
        named |= _prefixed(f"untrained/{split}/", values)
    for split, values in metrics["trained"].items():
        named |= _prefixed("best/validation/" if split == "validation" else f"{split}/", values)
    for part in set(metrics) - {"untrained", "trained"}:
        for split, values in metrics[part].items():
            named |= _prefixed(f"{part}/{split}/", values)
    run.log_metrics(named, model_id=model_id)
    run.log_predictions(sample)
    with tempfile.TemporaryDirectory() as temporary:
        plots = Path(temporary)
        write_plots(plots, run, metrics["untrained"]["test"], metrics["trained"]["test"])
        run.log_artifacts(plots, "plots")


def _sample_predictions(dataset: Dataset, sample: dict[str, Any]) -> dict[str, list[Any]]:
    """Write the sample out as texts, one row per prediction, with hits marked."""
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
