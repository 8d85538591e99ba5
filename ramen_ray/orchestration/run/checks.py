"""Checks of a run's configuration and data before anything is started."""

import numpy as np

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig, check_epochs
from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.long_work import warn_once
from ramen_ray.method.metrics.ranking import METRICS
from ramen_ray.method.model.pretrained import EncoderError
from ramen_ray.method.model.sentence_folder import EncoderFolder, open_encoder
from ramen_ray.method.retrieval.index import FEWEST_IVF_PQ_ADS
from ramen_ray.orchestration.run.build import (
    build_training_data,
    cluster_schedule,
    encoder_tokenizer,
)
from ramen_ray.presets import lambdas, linked_sets

MOST_UNKNOWN = 0.2


def check_config(config: RunConfig, dataset: Dataset) -> None:
    """Check what can be known before anything is started.

    Raises:
        DatasetError: a table is missing or empty, or there are fewer train queries than a batch.
        ConfigError: a setting does not fit the dataset, the encoder or another setting.
        EncoderError: encoder or tokenizer cannot be found, or do what training would leave out;
            texts may be longer than the encoder takes.
    """
    num_rows = check_structure(dataset)
    check_sets(config, dataset)
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
    _check_encoder(config.encoder)
    check_epochs(config)
    _check_base(config)
    if config.index.kind == "ivf_pq" and num_rows["ads"] < FEWEST_IVF_PQ_ADS:
        raise ConfigError(
            f"index.kind ivf_pq learns its cells from at least {FEWEST_IVF_PQ_ADS} ads; "
            f"{dataset.path} has {num_rows['ads']}, for which flat is best"
        )
    encoder_tokenizer(config.encoder)


def check_clicks(config: RunConfig, data: Prepared) -> None:
    """Raise a DatasetError if clicks do not fill a batch, a ConfigError if no query has enough."""
    training_data = build_training_data(config, data)
    drawn = config.base.parts.num_positives
    most = int(np.diff(training_data.clicks.indptr).max())
    if drawn > most:
        raise ConfigError(
            f"base.num_positives {drawn} is more than any query of {data.metadata['name']} led to: "
            f"the most is {most}"
        )
    batch = config.training.global_batch_size
    num_queries = len(training_data.clicked_rows)
    if num_queries < batch:
        raise DatasetError(
            f"{data.metadata['name']} has {num_queries} train queries with clicks, fewer than "
            f"training.global_batch_size {batch}"
        )


def check_vocabulary(config: RunConfig, data: Prepared) -> None:
    """Raise an EncoderError if more than MOST_UNKNOWN of a table's tokens are unknown."""
    name = config.encoder.pretrained
    for table in ("queries/train", "ads"):
        share = data.text_figures[table].share_unknown
        if share > MOST_UNKNOWN:
            raise EncoderError(
                f"encoder.pretrained {name!r}: its vocabulary does not know {share:.0%} of the "
                f"tokens of {data.metadata['name']}'s {table}, whose texts it cannot tell apart; "
                f"set encoder.pretrained to an encoder for their language, such as a multilingual "
                f"one"
            )


def check_sets(config: RunConfig, dataset: Dataset) -> None:
    """Check that the anchor sets with a weight exist, with edges on that side; else ConfigError."""
    linked = linked_sets(dataset)
    for side, weights in lambdas(config).items():
        for name in weights:
            key = f"regularization.{side}.{name}"
            if name not in dataset.anchor_sets:
                raise ConfigError(
                    f"{key}: the dataset {dataset.path} has no anchor set {name!r}; it has "
                    f"{', '.join(dataset.anchor_sets) or 'none'}"
                )
            if name not in linked[side]:
                end = {"lambda_x": "queries", "lambda_z": "ads"}[side]
                raise ConfigError(f"{key}: {name!r} has no edges of {end}; leave it out")


def _check_encoder(encoder: EncoderConfig) -> None:
    folder = open_encoder(encoder.pretrained, encoder.kind)
    for note in folder.notes:
        warn_once(note)
    _check_width(encoder, folder)
    if encoder.kind == "bag":
        return
    folder.choose_pooling(encoder.pooling)
    folder.check_length(encoder.max_length, "encoder.max_length")
    if (encoder.num_layers or 0) > (folder.num_layers or 0):
        raise ConfigError(
            f"encoder.num_layers {encoder.num_layers} is more than the {folder.num_layers} "
            f"layers of {encoder.pretrained!r}"
        )


def _check_width(encoder: EncoderConfig, folder: EncoderFolder) -> None:
    wanted = {"encoder.dim": encoder.dim, "encoder.projection_dim": encoder.projection_dim}
    flags = {flag: dim for flag, dim in wanted.items() if dim is not None}
    if len(flags) > 1:
        raise ConfigError(f"give {' or '.join(flags)}, not both: each makes a projection")
    for flag, dim in flags.items():
        if folder.dense_dim not in (None, dim):
            raise ConfigError(
                f"{flag} {dim}: {encoder.pretrained!r} has a projection to {folder.dense_dim} "
                f"dimensions already, which is trained further; leave the flag out"
            )
        if folder.dense_dim is None and dim > folder.width:
            raise ConfigError(
                f"{flag} {dim} is more than the {folder.width} dimensions of {encoder.pretrained!r}"
            )


def _check_base(config: RunConfig) -> None:
    base = config.base
    epochs = config.training.epochs
    batch = config.training.global_batch_size
    if config.loss.reverse_share and base.parts.loss == "triplet":
        raise ConfigError(
            f"loss.reverse_share {config.loss.reverse_share} needs a softmax loss; set base.loss "
            f"to decoupled or supcon"
        )
    if base.parts.order == "random":
        return
    schedule = cluster_schedule(config)
    for epoch in schedule.double_at:
        if epoch < epochs and not schedule.is_due(epoch):
            raise ConfigError(
                f"base.double_cluster_size_at {epoch}: no clusters are made at this epoch, only "
                f"every base.refresh_every {base.refresh_every} epochs from "
                f"base.first_clustered_epoch {base.first_clustered_epoch} on"
            )
    largest = schedule.size_at(epochs - 1)
    if largest > batch:
        raise ConfigError(
            f"base.cluster_size {base.cluster_size} doubles to {largest}, more than "
            f"training.global_batch_size {batch}; double it at fewer epochs"
        )
