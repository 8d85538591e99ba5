"""The model registry: versions of retrievers under a name, and the aliases that choose one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

import mlflow
import pyarrow as pa
from mlflow.artifacts import download_artifacts
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.pyfunc import FLAVOR_NAME

from ramen_ray.answering import code_of
from ramen_ray.data.store.made_folder import checksum_files, find_damage, owned_folder
from ramen_ray.errors import UserError, first_line_of, redacted_reason, shown_address
from ramen_ray.naming import naming_fault
from ramen_ray.tracking.addresses import STORE_VARIABLE, TrackingError, place_beside
from ramen_ray.tracking.runs import (
    MODELS,
    cannot_use,
    kept_environment,
    metric_name,
    new_client,
    store_errors,
)

if TYPE_CHECKING:
    from ramen_ray.answering.retriever import Retriever

NAME = "retriever"  # of the logged model
RUNTIME = "runtime"  # key of a model's metadata: the library that computes its embeddings
ARTIFACTS = "artifacts"  # key of a model's artifacts in its pyfunc flavor
COPY_OF = "copy_of"  # tag of a run that logged a changed copy of a retriever: the original's URI
WINNER = "finalist"  # tag of a sweep's run: the id of the run that it chose
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's error codes for a model that does not exist, and for a name that no model can have."""
NO_FILE = "No such artifact"  # how MLflow's message begins
FILES = ("ads.parquet", "encoder", "index.faiss", "retriever.json")
MOST_SAID = 500
LOST = "the store has lost files of it: bring them back, or train again under another name"


class RegistryError(UserError):
    """A retriever cannot be found, registered or chosen."""


@dataclass(frozen=True)
class LoggedRetriever:
    """A retriever in MLflow."""

    model_id: str  # id of the logged model
    run_id: str  # the run that logged it
    metadata: dict[str, Any]  # kept with it, such as the dataset's fingerprint and ``num_ads``
    made_at: datetime  # in UTC

    @property
    def uri(self) -> str:
        """The URI by which MLflow loads it."""
        return uri_of(self.model_id)

    @property
    def uses_gpu(self) -> bool:
        """Whether it runs on a GPU if there is one."""
        return bool(self.metadata.get(RUNTIME, "torch") == "torch")


@contextmanager
def registry_errors(uri: str) -> Iterator[None]:
    """Turn MLflow's errors of the store at ``uri`` into a TrackingError, without a password."""
    try:
        yield
    except MlflowException as error:
        lost = f"; {LOST}" if error.message.startswith(NO_FILE) else ""
        reason = redacted_reason(error.message.splitlines()[0], uri)
        message = f"the MLflow store {shown_address(uri)}: {reason}{lost}"
        raise TrackingError(message) from None  # the cause may contain a password


class Parameters(dict[str, str]):
    """Settings of a run, by dotted key; a RegistryError names one that it was logged without."""

    def __init__(self, run_id: str, logged: Mapping[str, str]) -> None:
        super().__init__(logged)
        self._run_id = run_id

    def __missing__(self, key: str) -> NoReturn:
        raise RegistryError(
            f"the MLflow run {self._run_id} was logged without the setting {key}, which trainings "
            f"have; choose another retriever"
        )


class Registry:
    """The registered retrievers of an MLflow store; all methods raise TrackingError without it."""

    def __init__(self, uri: str) -> None:
        """Use the store at ``uri``, in the whole process: MLflow has one registry per process."""
        # MLflow sets it too, by which the user names a store for all.
        with kept_environment(STORE_VARIABLE):
            mlflow.set_tracking_uri(uri)
        self.uri = uri
        try:
            self.client = new_client(uri)
        except store_errors() as error:
            raise TrackingError(cannot_use(uri, error)) from None  # it may contain a password

    def find_logged(self, run_id: str, metric: str | None) -> tuple[str, str]:
        """Return (run id, model id) of a run's retriever, or of that of its best child.

        That is the finalist that a sweep chose; else the validation ``metric`` says which child is
        best; None is each one's selection metric.
        Raises a RegistryError if there is no retriever, as the run did not finish.
        """
        with registry_errors(self.uri):
            parent = self.client.get_run(run_id)
            below = f"tags.`mlflow.parentRunId` = '{run_id}' and attributes.status = 'FINISHED'"
            experiment = parent.info.experiment_id
            children = self.client.search_runs([experiment], below, max_results=10_000)
            winner = parent.data.tags.get(WINNER)
            best_first = sorted(
                children,
                key=lambda child: (child.info.run_id != winner, -_validated(child, metric)),
            )
            for run in [parent, *best_first]:
                logged_by = run.info.run_id
                by_run = f"source_run_id = '{logged_by}' and name = '{NAME}'"
                for model in self.client.search_logged_models([experiment], by_run):  # latest first
                    if model.status == "READY":
                        return logged_by, model.model_id
        raise RegistryError(
            f"the MLflow run {run_id} has no retriever, nor has a finished run below it; did it "
            f"finish?"
        )

    def explain_choice(self, run_id: str, chosen_id: str, metric: str) -> str | None:
        """Say which child of ``run_id`` was chosen by ``metric``; None if the run itself was."""
        if run_id == chosen_id:
            return None
        with registry_errors(self.uri):
            sweep = self.client.get_run(run_id)
            chosen = self.client.get_run(chosen_id)
        if sweep.data.tags.get(WINNER) == chosen_id:
            return f"the sweep's finalist: {chosen.info.run_name}"
        reached = 100 * _validated(chosen, metric)
        best = 100 * _validated(sweep, metric)
        choice = f"best finished run: {chosen.info.run_name}, validation {metric} {reached:.2f}"
        if best - reached < 0.005:
            return choice
        return f"{choice}; the sweep's best, {best:.2f}, ended without a retriever"  # a better one

    def name_of_run(self, run_id: str) -> str:
        """Return the name of a run, as the MLflow UI shows it."""
        with registry_errors(self.uri):
            return str(self.client.get_run(run_id).info.run_name)

    def parameters(self, run_id: str) -> Parameters:
        """Return the settings that a run was started with."""
        with registry_errors(self.uri):
            return Parameters(run_id, self.client.get_run(run_id).data.params)

    def check_name(self, name: str, alias: str) -> None:
        """Raise a RegistryError if a new model or alias cannot have its name."""
        if fault := naming_fault(alias, dots=False):
            raise RegistryError(f"the alias: {fault}")
        fault = naming_fault(name)
        if fault and self.unless_absent(self.client.get_registered_model, name) is None:
            raise RegistryError(f"the name of the model: {fault}")

    def unless_absent(self, get: Callable[..., Any], *key: str) -> Any:
        """Return what a method of MLflow's client gets by this key; None if there is nothing."""
        with registry_errors(self.uri):
            try:
                return get(*key)
            except MlflowException as error:
                if error.error_code in ABSENT:
                    return None
                raise

    def register(self, name: str, run_id: str, model_id: str) -> str:
        """Return the version of ``name`` for a logged model; register it if there is none."""
        if self.unless_absent(self.client.get_registered_model, name) is None:
            with registry_errors(self.uri):
                self.client.create_registered_model(name)
        with registry_errors(self.uri):
            for version in self.client.search_model_versions(f"name = '{name}'"):
                if version.source == uri_of(model_id):
                    return str(version.version)
            version = self.client.create_model_version(
                name, uri_of(model_id), run_id, model_id=model_id
            )
        return str(version.version)

    def describe(self, name: str, number: str, text: str) -> None:
        """Set the description of a version, which the MLflow UI shows."""
        with registry_errors(self.uri):
            self.client.update_model_version(name, number, text)

    def pinned(self, model_uri: str) -> str:
        """Return the URI of the version that an alias names now; others as they are."""
        name, at, alias = model_uri.removeprefix(MODELS).rpartition("@")
        if not at:
            return model_uri
        with registry_errors(self.uri):
            version = self.client.get_model_version_by_alias(name, alias).version
        return f"{MODELS}{name}/{version}"

    def look_up(self, model_uri: str) -> LoggedRetriever:
        """Read the metadata of a ``models:/`` URI; a RegistryError if it is no retriever."""
        with registry_errors(self.uri):
            try:
                model = Model.load(self._place(model_uri))
            except (ImportError, OSError) as error:
                raise TrackingError(cannot_use(self.uri, error)) from None
        metadata = model.metadata or {}
        if "dataset_fingerprint" not in metadata:
            raise RegistryError(f"{model_uri} is not a retriever of this project")
        made_at = datetime.fromisoformat(model.utc_time_created).replace(tzinfo=UTC)
        return LoggedRetriever(str(model.model_id), model.run_id, metadata, made_at)

    def trained_by(self, retriever: LoggedRetriever) -> str:
        """Return the id of the run that trained a retriever, or what it was copied from."""
        with registry_errors(self.uri):
            original = self.client.get_run(retriever.run_id).data.tags.get(COPY_OF)
        if original is None:
            return retriever.run_id
        return self.trained_by(self.look_up(original))

    def load(self, model_uri: str, device: str | None = None, **options: Any) -> "Retriever":
        """Load a retriever, onto a GPU if there is one and no ``device``; or a RegistryError.

        It answers by the code that it keeps, which must know the ``options`` of a Retriever.
        """
        try:
            with owned_folder() as aside:
                folder = self.download(model_uri, aside, may_stay=True)
                return open_retriever(folder, device, **options)
        except FileNotFoundError as error:
            raise RegistryError(f"{model_uri} cannot be loaded: {LOST} ({error})") from error
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            raise RegistryError(f"{model_uri} cannot be loaded: {first_line_of(error)}") from error

    def download(self, model_uri: str, folder: Path, may_stay: bool = False) -> Path:
        """Copy a retriever into ``folder``; returns the folder there that its run wrote.

        One that is on this machine is not copied if it ``may_stay``: its folder is returned.
        Raises a RegistryError if some of its files are gone or damaged.
        """
        folder.mkdir(exist_ok=True)
        with registry_errors(self.uri):
            place = self._place(model_uri)
            is_here = may_stay and Path(place).is_dir()
            fetched = Path(download_artifacts(place, dst_path=None if is_here else str(folder)))
            artifacts = Model.load(str(fetched)).flavors[FLAVOR_NAME][ARTIFACTS]
            retriever = fetched / artifacts[NAME]["path"]
        if missing := [name for name in FILES if not (retriever / name).exists()]:
            raise RegistryError(f"{model_uri} has no {', '.join(missing)}; {LOST}")
        # those of earlier versions have no checksums
        if checksum_files(retriever) and (damage := find_damage(retriever)):
            raise RegistryError(f"{model_uri} is damaged: {damage}; {LOST}")
        return retriever

    def _place(self, model_uri: str) -> str:
        """Return the folder of a retriever that is on this machine, or else its URI."""
        source = self.pinned(model_uri)
        name, _, version = source.removeprefix(MODELS).rpartition("/")
        if name and version.isdecimal():
            source = self.client.get_model_version(name, version).source
        model_id = source.removeprefix(MODELS)
        if model_id == source or "/" in model_id:  # a folder, or what only MLflow understands
            return model_uri
        address = self.client.get_logged_model(model_id).artifact_location
        here = place_beside(self.uri, address) or Path(unquote(address.removeprefix("file://")))
        return str(here) if here.is_dir() else model_uri


def ask(retriever: "Retriever", queries: Sequence[Any], params: Mapping[str, Any]) -> pa.Table:
    """Return what :meth:`Retriever.answer` does, with the ``params`` that are not None.

    Raises a RegistryError if they ask for too much, or for what the retriever does not have; its
    message has at most MOST_SAID characters of a request.
    """
    options = {name: value for name, value in params.items() if value not in (None, (), {})}
    check_options(retriever.answer, options)
    try:
        return retriever.answer(queries, **options)
    except retriever.refusal as error:
        raise RegistryError(str(error)[:MOST_SAID]) from None


def open_retriever(folder: Path, device: str | None = None, **options: Any) -> "Retriever":
    """Load the retriever in a folder by the code that it keeps, which must know the ``options``."""
    kept = code_of(folder).Retriever
    check_options(kept, options)
    opened: Retriever = kept(folder, device, **options)
    return opened


def check_options(kept: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise a RegistryError if the code that a retriever keeps does not know an option."""
    if new := options.keys() - signature(kept).parameters:
        raise RegistryError(
            f"this retriever is of an earlier version, without {', '.join(sorted(new))}; each new "
            f"one has it, also one that jobs/index.py makes"
        )


def ask_once(retriever: "Retriever") -> None:
    """Ask a retriever a query before it is taken; a RegistryError if it does not answer."""
    try:
        (row,) = ask(retriever, ["a query"], {"top_k": 1}).to_pylist()
        fault = row["error"] or ("" if row["ads"] else "it finds no ad")
    except Exception as error:  # of any library that it runs
        fault = first_line_of(error)
    if fault:
        raise RegistryError(f"the retriever does not answer, and is not taken: {fault}")


def _validated(run: Run, metric: str | None) -> float:
    """Return the best validation metric of a run, or a value below all others if it has none."""
    metric = metric or run.data.params.get("training.selection_metric", "")
    return float(run.data.metrics.get(metric_name(f"best/validation/{metric}"), float("-inf")))


def uri_of(model_id: str) -> str:
    """Return the URI by which MLflow loads a logged model."""
    return f"models:/{model_id}"
