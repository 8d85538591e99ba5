"""The retriever of a run: it is made in the run's folder, and then logged."""

import shutil
from pathlib import Path

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.index import IndexKind, choose_kind
from ramen_ray.method.retrieval.retriever_folder import RetrieverSettings, write_retriever

RETRIEVER = ".retriever/retriever"  # in a run's folder, until it is logged


def make_retriever(
    config: RunConfig, data: Prepared, model: DualEncoder, run_directory: Path
) -> dict[str, float]:
    """Write a retriever of a model into RETRIEVER; returns figures of its index."""
    folder = run_directory / RETRIEVER
    shutil.rmtree(folder.parent, ignore_errors=True)  # of a worker that was killed
    folder.mkdir(parents=True)
    settings = RetrieverSettings(index_kind(config, data), config.encoder.max_length)
    return write_retriever(folder, model, Dataset(config.dataset), data, settings)


def index_kind(config: RunConfig, data: Prepared) -> IndexKind:
    """Return the kind of a run's index, by default by the number of ads."""
    return choose_kind(len(data.ads)) if config.index.kind == "auto" else config.index.kind
