"""Log what a finished run leaves in MLflow: retriever, figures, table, predictions."""

import shutil

import numpy as np
import pandas as pd

from ramen_ray.config import flatten
from ramen_ray.data.arrays import map_array
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.data.store.predictions import shown_ads, spell_out
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.method.metrics.ranking import HEADLINES
from ramen_ray.orchestration.run.build import build_ground_truth
from ramen_ray.orchestration.run.directory import TEST_ADS_FILE, started_from, step_of
from ramen_ray.orchestration.run.identity import TRAINED_ON, trained_on
from ramen_ray.orchestration.run.worker import RETRIEVER, WorkerResult, WorkerTask, index_kind
from ramen_ray.reports.predictions_page import AT, write_predictions_page
from ramen_ray.reports.report_tables import as_markdown, headlines, metrics_table
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import prefixed
from ramen_ray.tracking.step_logger import StepLogger

SINCE_IT_BEGAN = "since the run began; put it back, and run the same command again"
EXAMPLE_QUERIES = 2
MOST_QUERIES = 10_000
PAGE = "predictions.html"


def log_results(task: WorkerTask, trained: WorkerResult, data: Prepared) -> None:
    """Log a finished run, whose workers were sent ``task`` and have returned ``trained``.

    Raises a DatasetError if the dataset has changed since the run began; no retriever is logged.
    """
    config = task.inputs.config
    dataset = task.inputs.dataset
    run = task.run
    folder = task.run_directory
    metrics = trained.metrics
    StepLogger(run, folder).send_unsent()
    with dataset.unchanged(SINCE_IT_BEGAN):
        predictions = _predictions(task, data)
        queries = next(dataset.batches("queries/test", ["text"], EXAMPLE_QUERIES))["text"]
    metadata = {
        "dataset": dataset.name,
        "dataset_fingerprint": dataset.fingerprint,
        TRAINED_ON: [[*seen] for seen in trained_on(flatten(config), dataset.table_digests[TRAIN])],
        "encoder": config.encoder.pretrained,
        "index": index_kind(config, data),
        "num_ads": len(data.ads),
        "part": trained.part,
    }
    model_id = log_retriever(run, folder / RETRIEVER, queries.to_pylist(), metadata)
    shutil.rmtree((folder / RETRIEVER).parent)
    named = {
        **prefixed("index/", trained.index),
        "best/step": step_of(trained.best_checkpoint),
        "trained_seconds": trained.trained_seconds,
        "waited_seconds": trained.waited_seconds,
    }
    for row, of_splits in metrics.items():
        for split, values in of_splits.items():
            is_best = row == "trained" and split == "validation"
            place = "" if row == "trained" else f"{row}/"
            named |= prefixed("best/validation/" if is_best else f"{place}{split}/", values)
    for split in ("validation", "test"):  # without a prefix, so that the UI shows them first
        named |= {f"{split}_{name}": metrics["trained"][split][name] for name in HEADLINES}
    run.log_metrics(named, model_id=model_id)
    run.rename(f"{headlines(metrics['trained']['test'])} {folder.name}")
    with owned_folder() as artifacts:
        write_predictions_page(artifacts / PAGE, f"{folder.name}: test queries", predictions)
        run.log_artifacts(artifacts / PAGE)
    before = started_from(config)
    rows = {before if row == "untrained" else row: of_row for row, of_row in metrics.items()}
    run.describe(f"{as_markdown(metrics_table(rows))}\n\n{run.link_to(PAGE)}\n")


def _predictions(task: WorkerTask, data: Prepared) -> pd.DataFrame:
    """Return the best ads of test queries, or of some if there are many."""
    config = task.inputs.config
    dataset = task.inputs.dataset
    ads = map_array(task.run_directory / TEST_ADS_FILE)[:, :AT]
    drawn = np.random.default_rng(config.seed).permutation(len(ads))[:MOST_QUERIES]
    ground_truth = build_ground_truth(config, data, "test")
    queries = dataset.rows_with_ids("queries/test", np.sort(drawn))
    clicked = queries["ad_ids"].combine_chunks().flatten().to_numpy()
    shown = dataset.rows_with_ids("ads", np.union1d(shown_ads(ads[drawn]), clicked))
    unknown = np.full(ads.shape, np.nan, dtype=np.float32)  # a run keeps no scores
    return spell_out(queries, shown, (ads, unknown), ground_truth.known(data, "test")).to_pandas()
