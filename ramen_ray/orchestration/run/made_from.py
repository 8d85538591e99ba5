"""What a run is made from, and whether that is still the same: encoder, code, data, graph, ads."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import ramen_ray
from ramen_ray.config import RunConfig, flatten, overlay, read_config, with_absolute_paths
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.contents import content_digest
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError, open_unchanged
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER, ENCODER_FOLDER, copy_model
from ramen_ray.method.model.heads import Classifiers
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.model.sentence_folder import open_encoder
from ramen_ray.method.sampling.training_data import Regularizer
from ramen_ray.orchestration.prepare.pipeline import prepare, prepared_folder
from ramen_ray.orchestration.run.build import build_objective, encoder_tokenizer
from ramen_ray.orchestration.run.changes import TABLES, differences, removals
from ramen_ray.orchestration.run.checks import check_vocabulary
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    Identity,
    RunDirectory,
    RunError,
    run_with_id,
)
from ramen_ray.tracking.runs import MODELS, tracking_uri

if TYPE_CHECKING:
    from ramen_ray.method.graph.walk import WalkSettings
    from ramen_ray.tracking.registry import LoggedRetriever, Registry

CHANGE_NUMBERS = ("torch", "transformers")  # libraries whose other versions compute other numbers
SETTING_OF = {"dataset": "dataset", TABLES: "dataset", "encoder": "encoder.pretrained"}
"""The setting that says where each part is that has no version."""
CARRIED_FILE = "carried.npy"  # (ads,) the ad of an earlier run whose classifier it starts from; -1
TRAINED_ON = "trained_on"  # key of a retriever's metadata: what trained_on yields
TRAINED_ON_FILE = "trained_on.json"  # the same, of an encoder that was copied from a retriever
NOT_KNOWN = "not known"

logger = logging.getLogger(__name__)


def resolved(config: RunConfig) -> RunConfig:
    """Make paths absolute, and name the folder of an encoder that a run or MLflow has.

    Raises a RunError, RegistryError or TrackingError if there is none.
    """
    name = config.encoder.pretrained
    folder = Path(name).expanduser().absolute()
    if name.startswith(MODELS):
        folder = _folder_of_model(name, Path(config.output))
    if RunDirectory(folder).is_run:
        folder = RunDirectory(folder).best_checkpoint
    if (encoder := folder / ENCODER_FOLDER).is_dir():  # we have saved it, and know what it is
        kind = open_encoder(str(encoder)).kind
        config = overlay(config, {"encoder.pretrained": str(encoder), "encoder.kind": kind})
    elif folder.is_dir():
        config = overlay(config, {"encoder.pretrained": str(folder)})
    return with_absolute_paths(config)


def _folder_of_model(uri: str, output: Path) -> Path:
    """Return a folder with the encoder of a model: that of the run that trained it, or a copy."""
    from ramen_ray.tracking.registry import Registry  # takes a second

    registry = Registry(tracking_uri(output))
    retriever = registry.look_up(uri)
    if (directory := run_with_id(output, registry.trained_by(retriever))) is not None:
        return directory.path  # which has classifiers too
    kept = output.absolute() / "encoders" / retriever.model_id
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with owned_folder(kept.parent) as aside:
            made = aside / "made"
            copy_model(registry.download(retriever.uri, aside), made)
            before = training_data(registry, retriever)
            (made / TRAINED_ON_FILE).write_text(json.dumps(before))
            with suppress(OSError):  # another process has made it meanwhile
                made.rename(kept)
    return kept


def identity_of(config: RunConfig, dataset: Dataset) -> Identity:
    """Return what a run is made from besides its settings; take it before any of that is read.

    Raises an EncoderError if there is no such encoder.
    """
    parts = {**data_identity(dataset), "encoder": content_of(config.encoder.pretrained)}
    classifiers = Path(config.encoder.pretrained).parent / CLASSIFIER_FOLDER
    if config.base.parts.heads == "classifier" and classifiers.is_dir():
        parts["classifiers"] = content_of(str(classifiers))
    return {**parts, **software()}


def data_identity(dataset: Dataset) -> Identity:
    """Return the part of :func:`identity_of` that is the dataset's."""
    digests = [f"{table}:{digest}" for table, digest in dataset.table_digests.items()]
    return {"dataset": dataset.fingerprint, TABLES: " ".join(digests)}


def trained_on(parameters: Mapping[str, str], content: str) -> Iterator[tuple[str, str]]:
    """Yield (path, content) of a run's dataset, and of those that its encoder saw before.

    ``parameters`` are those of the run, by dotted key. The ``content`` is a hash of the train
    queries, or the fingerprint. Of an encoder that we trained, but whose run has gone, its own
    folder stands for the dataset, whose content is NOT_KNOWN.
    """
    yield parameters["dataset"], content
    encoder = Path(parameters.get("encoder.pretrained", ""))
    if (file := encoder.parent / TRAINED_ON_FILE).is_file():
        yield from map(tuple, json.loads(file.read_text()))
    elif (file := encoder.parent / IDENTITY_FILE).is_file():
        before = flatten(read_config(encoder.parent / CONFIG_FILE))
        yield from trained_on(before, json.loads(file.read_text())["dataset"])
    elif encoder.name == ENCODER_FOLDER:
        yield str(encoder), NOT_KNOWN


def training_data(registry: "Registry", retriever: "LoggedRetriever") -> list[tuple[str, str]]:
    """Return what :func:`trained_on` yields of the run that trained a retriever."""
    noted = retriever.metadata.get(TRAINED_ON)
    if noted is None:  # by an earlier version
        parameters = registry.parameters(retriever.run_id)
        return [*trained_on(parameters, retriever.metadata["dataset_fingerprint"])]
    return [(path, content) for path, content in noted]


def software() -> Identity:
    """Return the versions of the project with its source, and of libraries."""
    # Builds such as +cu126 belong to the machine, which is no part of a run.
    versions = {name: version(name).partition("+")[0] for name in CHANGE_NUMBERS}
    return {"ramen_ray": f"{ramen_ray.__version__}, source {_source_digest()}", **versions}


def check_meanwhile(expected: Identity, now: Identity, dataset: str | Path = "") -> None:
    """Check that what is used ``now`` is what was ``expected``, or a part of it; else RunError.

    The error has the commands that remove new graphs of the ``dataset``.
    """
    if changed := differences(expected, {key: now.get(key, "") for key in expected}):
        raise RunError(
            f"what is trained on has changed meanwhile: {changed}; put it back"
            f"{removals(expected, now, dataset)}, and run the same command again"
        )


@cache
def _source_digest() -> str:
    root = Path(ramen_ray.__file__).parent
    files = sorted((file.relative_to(root).as_posix(), file) for file in root.rglob("*.py"))
    return content_digest(files)


def prepared_for(config: RunConfig, dataset: Dataset) -> Prepared:
    """Prepare a dataset for a run's encoder, unless that is done."""
    return prepare(dataset, Path(config.output) / "prepared", encoder_tokenizer(config.encoder))


def prepared_at(config: RunConfig, dataset: Dataset) -> Path:
    """Return where :func:`prepared_for` puts the dataset; it is not there before."""
    return prepared_folder(
        dataset, Path(config.output) / "prepared", encoder_tokenizer(config.encoder)
    )


def make_ready(config: RunConfig) -> None:
    """Do what a run needs other processes for before it trains: prepare data, walk the graph.

    Raises a DatasetError or EncoderError if they are not usable, a ClusterError if a process died.
    """
    data = prepared_for(config, Dataset(config.dataset))
    check_vocabulary(config, data)
    edges_to_train(config, data)


def is_ready(config: RunConfig) -> bool:
    """Say whether :func:`make_ready` has nothing to do; or a DatasetError, or an EncoderError."""
    data = prepared_at(config, Dataset(config.dataset))
    if not data.is_dir():
        return False
    if not config.walk.enabled:
        return True
    from ramen_ray.orchestration.prepare.walks import is_walked

    return is_walked(*_walk_arguments(config, Prepared(data)))


def edges_to_train(config: RunConfig, data: Prepared) -> Path:
    """Return the folder of the graph to train on, walked if the configuration asks for it."""
    if not config.walk.enabled:
        return data.path / "edges"
    from ramen_ray.orchestration.prepare.walks import walked_edges

    return walked_edges(*_walk_arguments(config, data))


def _walk_arguments(
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


def note_carried(config: RunConfig, dataset: Dataset, folder: Path) -> None:
    """Write CARRIED_FILE into a run's folder, if the run that has the encoder has classifiers."""
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
        # The other run's dataset has gone or changed.
        logger.warning("warning: classifiers start from the ads' texts, as %s", error)
        return
    found: Int64s = np.asarray(pc.fill_null(pc.index_in(*names), -1), dtype=np.int64)
    is_trained = np.append(Classifiers.open(classifiers).is_trained, False)  # for -1: not found
    found[~is_trained[found]] = -1
    np.save(folder / CARRIED_FILE, found)
    kept, num_ads = int((found >= 0).sum()), len(found)
    logger.info("classifiers of %s of %s ads go on from %s", f"{kept:,}", f"{num_ads:,}", path)


def _names(dataset: Dataset, *both: Dataset) -> pa.Array:
    """Return what tells the ads (ads,) of a dataset apart, in the order of their ids."""
    has_ids = all("source_id" in one.schema("ads").names for one in both)
    ads = dataset.read("ads").sort_by("ad_id")
    return ads["source_id" if has_ids else "text"].combine_chunks()
