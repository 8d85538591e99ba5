"""What a run starts from that an earlier one has trained: encoder, and classifiers of ads."""

import json
import logging
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.config import ConfigError, RunConfig, overlay, read_config, with_absolute_paths
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError, open_unchanged
from ramen_ray.method.model.classifiers import Classifiers
from ramen_ray.method.model.dual_encoder import (
    CLASSIFIER_FOLDER,
    ENCODER_FOLDER,
    copy_model,
)
from ramen_ray.method.model.sentence_folder import read_sentence_folder
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    RUN_FILE,
    RunDirectory,
)
from ramen_ray.tracking.runs import MODELS, tracking_uri

CARRIED_FILE = "carried.npy"
"""In a run's folder, by ad (ads,): the ad of an earlier run whose classifier it starts from, or -1.
"""

logger = logging.getLogger(__name__)


def resolved(config: RunConfig) -> RunConfig:
    """Make paths absolute, and name the folder of an encoder that a run or MLflow has.

    Raises:
        ConfigError, RegistryError, TrackingError: there is no such encoder.
    """
    name = config.encoder.pretrained
    folder = Path(name).expanduser().absolute()
    if name.startswith(MODELS):
        folder = _folder_of_model(name, Path(config.output))
    if folder.is_dir():
        encoder = _encoder_in(folder)
        changes = {"encoder.pretrained": str(encoder)}
        if encoder != folder:  # we have saved it, and know what it is
            changes["encoder.kind"] = read_sentence_folder(str(encoder)).kind
        config = overlay(config, changes)
    return with_absolute_paths(config)


def _encoder_in(folder: Path) -> Path:
    """Return the encoder's folder in that of a run, of a checkpoint, or of an encoder.

    Raises:
        ConfigError: it is a run that is not finished.
    """
    if (folder / RUN_FILE).is_file():
        best = RunDirectory(folder).notes.get("best_checkpoint")
        if best is None:
            raise ConfigError(
                f"encoder.pretrained {folder}: the run is not finished; give one of its checkpoints"
            )
        folder = folder / best
    encoder = folder / ENCODER_FOLDER
    return encoder if encoder.is_dir() else folder


def _folder_of_model(uri: str, output: Path) -> Path:
    """Return a folder with the encoder of a model: that of the run that trained it, or a copy."""
    from ramen_ray.tracking.registry import Registry  # takes a second

    registry = Registry(tracking_uri(output))
    retriever = registry.look_up(uri)
    run_id, name = registry.trained_by(retriever)
    directory = RunDirectory.of(str(output), name)
    if (directory.path / RUN_FILE).is_file() and directory.notes.get("mlflow_run_id") == run_id:
        return directory.path  # which has classifiers too
    kept = output.absolute() / "encoders" / retriever.model_id
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as aside:
            made = Path(aside) / "made"
            copy_model(registry.download(retriever.uri, Path(aside)), made)
            with suppress(OSError):  # another process has made it meanwhile
                made.rename(kept)
    return kept


def note_carried(config: RunConfig, dataset: Dataset, folder: Path) -> None:
    """Note in a run's folder which ads start from a classifier of the run that has the encoder.

    Ads are told apart by the user's ids, or by their texts if a dataset has none. Nothing is noted
    if there are no classifiers; if the other run's dataset has gone or changed, that is said.
    """
    checkpoint = Path(config.encoder.pretrained).parent
    classifiers = checkpoint / CLASSIFIER_FOLDER
    if config.base.parts.heads == "none" or not classifiers.is_dir():
        return
    path = read_config(checkpoint / CONFIG_FILE).dataset
    fingerprint = json.loads((checkpoint / IDENTITY_FILE).read_text())["dataset"]
    since = f"since {checkpoint.parent.name} was trained on it"
    try:
        before = open_unchanged(path, fingerprint, since)
        with before.unchanged(since), dataset.unchanged(WHILE_READ):
            names = [_names(one, before, dataset) for one in (dataset, before)]
    except DatasetError as error:
        logger.warning("warning: classifiers start from the ads' texts, as %s", error)
        return
    found: Int64s = np.asarray(pc.fill_null(pc.index_in(*names), -1), dtype=np.int64)
    found[~np.append(Classifiers.open(classifiers).is_trained, False)[found]] = -1
    np.save(folder / CARRIED_FILE, found)
    kept, num_ads = int((found >= 0).sum()), len(found)
    logger.info("classifiers of %s of %s ads go on from %s", f"{kept:,}", f"{num_ads:,}", path)


def _names(dataset: Dataset, *both: Dataset) -> pa.Array:
    """Return what tells the ads (ads,) of a dataset apart, in the order of their ids."""
    has_ids = all("source_id" in one.schema("ads").names for one in both)
    ads = dataset.read("ads").sort_by("ad_id")
    return ads["source_id" if has_ids else "text"].combine_chunks()
