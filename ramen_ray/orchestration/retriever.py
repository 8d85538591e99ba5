"""Make the retriever of a finished run in a task, and log it."""

import tempfile
from pathlib import Path

import ray

from ramen_ray.config import RunConfig
from ramen_ray.data.dataset import Dataset
from ramen_ray.data.prepared import Prepared
from ramen_ray.method.index import choose_kind
from ramen_ray.method.retriever import write_retriever
from ramen_ray.tracking.retriever import log_retriever

EXAMPLE_QUERIES = 2


def log_run_retriever(
    config: RunConfig, dataset: Dataset, data: Prepared, encoder: Path, uri: str, run_id: str
) -> tuple[str, dict[str, float]]:
    """Index all ads with the run's best encoder, and log it with them as a deployable model.

    Args:
        config: the run's; its ``output`` is a folder that all machines see.
        dataset: what the run was trained on.
        data: the same, prepared.
        encoder: folder of the best encoder.
        uri: the MLflow store.
        run_id: the run in it.

    Returns:
        The model's id, and what is known of its index.
    """
    kind = choose_kind(len(data.ads)) if config.index.kind == "auto" else config.index.kind
    workers = config.workers
    task = ray.remote(write_retriever).options(
        num_cpus=workers.cpus_per_worker,
        num_gpus=workers.gpus_per_worker if workers.use_gpu else 0,
        scheduling_strategy="DEFAULT",  # a sweep's trial has room for its own process only
    )
    with tempfile.TemporaryDirectory(dir=config.output, prefix=".retriever-") as aside:
        folder = Path(aside)
        ref = task.remote(folder, encoder, dataset, data, kind, config.encoder.max_length)
        measured: dict[str, float] = ray.get(ref)
        metadata = {
            "dataset": dataset.name,
            "dataset_fingerprint": dataset.fingerprint,
            "encoder": config.encoder.pretrained,
            "index": kind,
            "num_ads": len(data.ads),
        }
        batch = next(dataset.batches("queries/test", ["text"], EXAMPLE_QUERIES))
        example = batch["text"].to_pylist()
        model_id = log_retriever(uri, run_id, folder, example, metadata)
    return model_id, {f"index/{name}": value for name, value in measured.items()}
