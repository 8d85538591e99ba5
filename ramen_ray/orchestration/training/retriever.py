"""Build the retriever of a finished run, and log it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray

from ramen_ray.bases.combination import Part
from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.retrieval.index import MOST_FLAT_ADS, choose_kind
from ramen_ray.method.retrieval.retriever_folder import RetrieverSettings, write_retriever
from ramen_ray.orchestration.cluster.resources import worker_task
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import Run

EXAMPLE_QUERIES = 2


@dataclass(frozen=True)
class RunRetriever:
    """The retriever of a run, written but not logged.

    Attributes:
        folder: where it is.
        example: queries that show how it is asked.
        metadata: what is kept with it.
        figures: figures of its index.
    """

    folder: Path
    example: list[str]
    metadata: dict[str, Any]
    figures: dict[str, float]

    def log(self, run: Run) -> str:
        """Log it as a deployable model; returns the model's id."""
        return log_retriever(run, self.folder, self.example, self.metadata)


def write_run_retriever(
    folder: Path,
    config: RunConfig,
    dataset: Dataset,
    data: Prepared,
    best: tuple[Path, Part],
    is_worker: bool = False,
) -> RunRetriever:
    """Index all ads with the run's best model, and write both into ``folder``.

    Args:
        folder: a folder that all machines can reach.
        config: the run's.
        dataset: the dataset the run was trained on.
        data: the same dataset, prepared.
        best: folder of the best model, and the part of its vectors that answers.
        is_worker: whether this process holds what a worker needs.
    """
    kind = choose_kind(len(data.ads)) if config.index.kind == "auto" else config.index.kind
    settings = RetrieverSettings(kind, config.encoder.max_length, config.workers.gb_per_shard)
    write = partial(_write_retriever, folder, best, dataset, data, settings)
    is_small = len(data.ads) <= MOST_FLAT_ADS and not config.workers.use_gpu
    if is_worker or is_small:
        measured = write()  # takes less time than starting a task
    else:  # a worker has ended by now, so there is room
        measured = ray.get(worker_task(_call, config.workers).remote(write))
    metadata = {
        "dataset": dataset.name,
        "dataset_fingerprint": dataset.fingerprint,
        "encoder": config.encoder.pretrained,
        "index": kind,
        "num_ads": len(data.ads),
        "part": best[1],
    }
    batch = next(dataset.batches("queries/test", ["text"], EXAMPLE_QUERIES))
    figures = {f"index/{name}": value for name, value in measured.items()}
    return RunRetriever(folder, batch["text"].to_pylist(), metadata, figures)


def _write_retriever(
    folder: Path,
    best: tuple[Path, Part],
    dataset: Dataset,
    data: Prepared,
    settings: RetrieverSettings,
) -> dict[str, float]:
    """Write a retriever, with a GPU if there is one."""
    check_intact(best[0])
    model = load_model(best[0], part=best[1])
    model.to("cuda" if ray.get_gpu_ids() else "cpu")
    return write_retriever(folder, model, dataset, data, settings)


def _call(write: Callable[[], dict[str, float]]) -> dict[str, float]:
    return write()
