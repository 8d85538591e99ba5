"""What a run is made from besides its settings, and the folder of the run that is made from it."""

import json
import shutil
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

import ramen_ray
from ramen_ray.config import (
    RunConfig,
    flatten,
    overlay,
    read_config,
    with_absolute_paths,
    write_config,
)
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.made_folder import (
    content_digest,
    folder_lock,
    made_once,
    owned_folder,
    read_json,
    write_json,
)
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER, ENCODER_FOLDER, copy_model
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.model.sentence_folder import open_encoder
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    TABLES,
    WHERE_IT_RUNS,
    Identity,
    RunDirectory,
    RunError,
    checkpoint_folders,
    deciding_settings,
    differences,
    refuse_anothers,
    refuse_changed,
    removals,
    run_with_id,
    told_how_to_go_on,
)
from ramen_ray.presets import used_sets
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.runs import MODELS

if TYPE_CHECKING:
    from ramen_ray.tracking.registry import LoggedRetriever, Registry

CHANGE_NUMBERS = ("torch", "transformers")  # libraries whose other versions compute other numbers
SETTING_OF = {"dataset": "dataset", TABLES: "dataset", "encoder": "encoder.pretrained"}
"""The setting that says where each part is that has no version."""
TRAINED_ON = "trained_on"  # key of a retriever's metadata: what trained_on yields
TRAINED_ON_FILE = "trained_on.json"  # the same, of an encoder that was copied from a retriever
NOT_KNOWN = "not known"


def identity_of(config: RunConfig, dataset: Dataset) -> Identity:
    """Return what a run is made from besides its settings; take it before any of that is read.

    Raises an EncoderError if there is no such encoder.
    """
    parts = {
        "dataset": dataset.fingerprint,
        TABLES: " ".join(f"{name}:{digest}" for name, digest in dataset.table_digests.items()),
        "encoder": content_of(config.encoder.pretrained),
    }
    classifiers = Path(config.encoder.pretrained).parent / CLASSIFIER_FOLDER
    if classifiers.is_dir():
        parts["classifiers"] = content_of(str(classifiers))
    return {**parts, **software()}


def without_tuned(made_from: Identity, tuned: Container[str]) -> Identity:
    """Return what runs have in common that differ in the ``tuned`` settings."""
    return {
        part: content for part, content in made_from.items() if SETTING_OF.get(part) not in tuned
    }


def trained_on(parameters: Mapping[str, str], content: str) -> Iterator[tuple[str, str]]:
    """Yield (path, content) of a run's dataset, and of those that its encoder saw before.

    ``parameters`` are those of the run, by dotted key. The ``content`` is a hash of the train
    queries, or the fingerprint. Of an encoder that we trained, but whose run has gone, its own
    folder stands for the dataset, whose content is NOT_KNOWN.
    """
    yield parameters["dataset"], content
    encoder = Path(parameters.get("encoder.pretrained", ""))
    if (file := encoder.parent / TRAINED_ON_FILE).is_file():
        yield from map(tuple, read_json(file))
    elif (file := encoder.parent / IDENTITY_FILE).is_file():
        before = flatten(read_config(encoder.parent / CONFIG_FILE))
        yield from trained_on(before, read_json(file)["dataset"])
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


@dataclass(frozen=True)
class Inputs:
    """A run's configuration, the dataset that it names, and all that these are made from."""

    config: RunConfig
    dataset: Dataset
    made_from: Identity

    @classmethod
    def of(cls, config: RunConfig) -> "Inputs":
        """Resolve a configuration, and look at what it names before any of that is read.

        Raises a DatasetError, EncoderError, RunError, RegistryError or TrackingError.
        """
        config = resolved(config)
        dataset = Dataset(config.dataset)
        return cls(config, dataset, identity_of(config, dataset))

    def check_still(self) -> None:
        """Raise a RunError if the configuration names something else by now."""
        now = identity_of(self.config, Dataset(self.config.dataset))
        check_meanwhile(self.made_from, now, self.config.dataset)


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
    with made_once(kept) as aside:
        if aside is not None:
            with owned_folder() as copied:
                copy_model(registry.download(retriever.uri, copied), aside)
            before = training_data(registry, retriever)
            write_json(aside / TRAINED_ON_FILE, before)
    return kept


@cache
def _source_digest() -> str:
    root = Path(ramen_ray.__file__).parent
    files = sorted((file.relative_to(root).as_posix(), file) for file in root.rglob("*.py"))
    return content_digest(files)


def refuse_another_runs(checkpoint: Path, inputs: Inputs) -> None:
    """Raise a RunError if a checkpoint is of other settings, or made from something else."""
    config = inputs.config
    settings = deciding_settings(read_config(checkpoint / CONFIG_FILE))
    refuse_anothers(checkpoint, settings, deciding_settings(config))
    before = read_json(checkpoint / IDENTITY_FILE)
    refuse_changed(checkpoint, before, inputs.made_from, config.dataset, config.allow_changed)


def experiment_hash(config: RunConfig, dataset_fingerprint: str) -> str:
    """Hash what determines a run's result: the data, and all settings but where it runs."""
    settings = json.dumps(config.model_dump(exclude=WHERE_IT_RUNS), sort_keys=True)
    return short_hash(f"{settings}{dataset_fingerprint}")


@contextmanager
def open_run_directory(inputs: Inputs) -> Iterator[RunDirectory]:
    """Find the run to start or resume, and lock it until the ``with`` block ends.

    Without a name, the same configuration on the same data resumes an interrupted run, or starts a
    new one (with a number after its name) if all earlier ones are finished or in use.

    Raises:
        RunError: the name is taken by a finished or active run, or by one with a different
            configuration, or made from something else; the message lists what differs.
    """
    config = inputs.config
    default = config.name or default_name(inputs)
    for name in chain([default], (f"{default}-{number}" for number in count(2))):
        directory = RunDirectory.of(config.output, name)
        is_made_here = directory.create()
        path = directory.path
        with folder_lock(path) as is_ours:
            if is_ours and not directory.is_finished:
                with told_how_to_go_on(path), _undone_on_early_failure(path, is_made_here):
                    _refuse_another(directory, inputs)
                    write_config(config, path / CONFIG_FILE)  # anew: the file may be damaged
                    directory.note(plan=deciding_settings(config), made_from=inputs.made_from)
                    yield directory
                return
        reason = "is finished" if is_ours else "is in use by another process"
        if config.name is not None:
            raise RunError(f"the run {name!r} in {path.parent} {reason}; choose another name")


def default_name(inputs: Inputs) -> str:
    """Name a run after what is trained, as in ``shop-bag-unidec-graph-`` and a hash of it all."""
    config = inputs.config
    has_graph = ["graph"] if used_sets(config) else []
    key = experiment_hash(config, inputs.made_from["dataset"])
    kinds = config.encoder.kind, config.base.kind
    return joined_name(inputs.dataset.name, *kinds, *has_graph, key)


def finished_run(inputs: Inputs) -> RunDirectory | None:
    """Return the folder of the run that a configuration names; None if it is not finished.

    Raises a RunError if it has other settings or data, or is made from something else.
    """
    directory = RunDirectory.of(inputs.config.output, str(inputs.config.name))
    if not directory.is_finished:
        return None
    _refuse_another(directory, inputs)
    return directory


@contextmanager
def _undone_on_early_failure(path: Path, is_made_here: bool) -> Iterator[None]:
    """Remove a new run that fails before its first checkpoint, unless its folder was there."""
    try:
        yield
    except BaseException:
        if is_made_here and not checkpoint_folders(path):
            shutil.rmtree(path)
        raise


def _refuse_another(directory: RunDirectory, inputs: Inputs) -> None:
    """Refuse the folder of a run of other settings, or made from something else."""
    config = inputs.config
    directory.refuse_another(deciding_settings(config), "run")
    directory.refuse_changed(inputs.made_from, config.dataset, config.allow_changed)
