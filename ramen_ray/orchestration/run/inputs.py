"""What a run reads, checked: its configuration, encoder, prepared data, graph and classifiers."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.config import (
    ConfigError,
    EncoderConfig,
    RunConfig,
    check_epochs,
    read_config,
)
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError, open_unchanged
from ramen_ray.data.store.made_folder import read_json
from ramen_ray.long_work import warn_once
from ramen_ray.method.metrics.ranking import METRICS
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER, ENCODER_FOLDER
from ramen_ray.method.model.heads import Classifiers
from ramen_ray.method.model.pretrained import EncoderError
from ramen_ray.method.model.sentence_folder import EncoderFolder, open_encoder
from ramen_ray.method.model.texts import TextTokenizer
from ramen_ray.method.objectives.terms import weighted_regularizers
from ramen_ray.method.retrieval.index import FEWEST_IVF_PQ_ADS
from ramen_ray.orchestration.prepare.pipeline import prepare, prepared_folder
from ramen_ray.orchestration.run.build import cluster_schedule
from ramen_ray.orchestration.run.directory import CONFIG_FILE, IDENTITY_FILE
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.presets import lambdas, linked_sets

if TYPE_CHECKING:
    from ramen_ray.method.graph.walk import WalkSettings
    from ramen_ray.method.sampling.training_data import Regularizer

MOST_UNKNOWN = 0.2
PREPARED = "prepared"  # the folder of prepared data in an output
CARRIED_FILE = "carried.npy"  # (ads,) the ad of an earlier run whose classifier it starts from; -1

logger = logging.getLogger(__name__)


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


def encoder_tokenizer(encoder: EncoderConfig) -> TextTokenizer:
    """Load an encoder's tokenizer; a bag of tokens gets no special tokens."""
    folder = open_encoder(encoder.pretrained, encoder.kind)
    prompts = folder.choose_prompts(encoder.query_prompt, encoder.ad_prompt)
    return folder.tokenizer(encoder.max_length, prompts)


def trained_tokenizer(checkpoint: Path, encoder: EncoderConfig) -> TextTokenizer:
    """Load the tokenizer of a checkpoint, whatever has become of the encoder that it began with."""
    folder = str(checkpoint / ENCODER_FOLDER)
    return encoder_tokenizer(encoder.model_copy(update={"pretrained": folder}))


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
    if base.parts.order != "clustered":  # else each batch is a cluster
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


def prepared_data(config: RunConfig, dataset: Dataset) -> Prepared:
    """Prepare a dataset for a run, unless that is done; see :func:`prepare` for what it raises.

    Raises also an EncoderError if the vocabulary does not fit the texts.
    """
    data = prepare(dataset, Path(config.output) / PREPARED, encoder_tokenizer(config.encoder))
    check_vocabulary(config, data)
    return data


def edges_to_train(config: RunConfig, data: Prepared) -> Path:
    """Return the folder of the graph to train on, walked if the configuration asks for it."""
    if not config.walk.enabled:
        return data.path / "edges"
    from ramen_ray.orchestration.prepare.walks import walked_edges

    return walked_edges(*_walks(config, data))


def is_ready(config: RunConfig, dataset: Dataset) -> bool:
    """Say whether a run needs no other processes before it trains: all is prepared and walked."""
    tokenizer = encoder_tokenizer(config.encoder)
    folder = prepared_folder(dataset, Path(config.output) / PREPARED, tokenizer)
    if not folder.is_dir() or not config.walk.enabled:
        return folder.is_dir()
    from ramen_ray.orchestration.prepare.walks import is_walked

    return is_walked(*_walks(config, Prepared(folder)))


def _walks(
    config: RunConfig, data: Prepared
) -> "tuple[Prepared, list[Regularizer], WalkSettings, int, Path]":
    """Return what decides a run's walked graphs, and the folder of all walked graphs."""
    from ramen_ray.method.graph.walk import WalkSettings  # importing numba takes half a second

    weights = config.regularization
    regularizers = [*weighted_regularizers(weights.lambda_x, weights.lambda_z)]
    settings = WalkSettings(**config.walk.model_dump(exclude={"enabled"}))
    return data, regularizers, settings, config.seed, Path(config.output) / "walked"


def note_carried(inputs: Inputs, folder: Path) -> None:
    """Write CARRIED_FILE into a run's folder, if the run that has the encoder has classifiers."""
    config = inputs.config
    dataset = inputs.dataset
    checkpoint = Path(config.encoder.pretrained).parent
    classifiers = checkpoint / CLASSIFIER_FOLDER
    if config.base.parts.heads == "none" or not classifiers.is_dir():
        return
    path = read_config(checkpoint / CONFIG_FILE).dataset
    fingerprint = read_json(checkpoint / IDENTITY_FILE)["dataset"]
    since = f"since {checkpoint.parent.name} was trained on it"
    try:
        before = open_unchanged(path, fingerprint, since)
        with before.unchanged(since), dataset.unchanged(WHILE_READ):
            names = [_names(of_ads, before, dataset) for of_ads in (dataset, before)]
    except DatasetError as error:
        # The other run's dataset has gone or changed.
        logger.warning("warning: classifiers start from the ads' texts, as %s", error)
        return
    carried: Int64s = np.asarray(pc.fill_null(pc.index_in(*names), -1), dtype=np.int64)
    is_trained = np.append(Classifiers.open(classifiers).is_trained, False)  # for -1: not there
    carried[~is_trained[carried]] = -1
    np.save(folder / CARRIED_FILE, carried)
    counts = f"{(carried >= 0).sum():,} of {len(carried):,}"
    logger.info("classifiers of %s ads go on from %s", counts, path)


def _names(dataset: Dataset, *both: Dataset) -> pa.Array:
    """Return what tells the ads (ads,) of a dataset apart, in the order of their ids."""
    has_ids = all("source_id" in each.schema("ads").names for each in both)
    ads = dataset.read("ads").sort_by("ad_id")
    return ads["source_id" if has_ids else "text"].combine_chunks()
