"""What a finished run leaves behind, in its folder and in MLflow."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.predictions import shown_ads, spell_out
from ramen_ray.method.training.checkpoints import ENCODER_FOLDER
from ramen_ray.orchestration.deployment.retriever import log_run_retriever
from ramen_ray.orchestration.training.run_directory import CONFIG_FILE, finished_run
from ramen_ray.reports.run import write_plots
from ramen_ray.tracking.runs import log_artifacts, log_metrics, log_predictions, tracking_uri


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


def log_outcome(
    config: RunConfig,
    result: TrainResult,
    outcome: dict[str, Any],
    dataset: Dataset,
    data: Prepared,
) -> None:
    """Log the retriever, the figures, sample predictions and plots of a finished run.

    Args:
        config: the run's.
        result: what it leaves behind.
        outcome: what its workers returned.
        dataset: what it was trained on.
        data: the same, prepared.
    """
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
