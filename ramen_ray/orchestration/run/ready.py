"""What a run needs other processes for before it trains: its data prepared, its graph walked."""

from pathlib import Path
from typing import TYPE_CHECKING

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.orchestration.prepare.pipeline import prepare, prepared_folder
from ramen_ray.orchestration.run.build import build_objective, encoder_tokenizer
from ramen_ray.orchestration.run.checks import check_vocabulary

if TYPE_CHECKING:
    from ramen_ray.method.graph.walk import WalkSettings


def make_ready(config: RunConfig) -> None:
    """Do what a run needs other processes for before it trains: prepare its data, walk its graph.

    Raises:
        DatasetError, EncoderError, ClusterError: the data are not usable, or a process has died.
    """
    dataset, tokenizer = Dataset(config.dataset), encoder_tokenizer(config.encoder)
    data = prepare(dataset, Path(config.output) / "prepared", tokenizer)
    check_vocabulary(config, data)
    edges_to_train(config, data)


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


def edges_to_train(config: RunConfig, data: Prepared) -> Path:
    """Return the folder of the graph to train on, walked if the configuration asks for it."""
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
