"""MLflow runs: one per training, continued when the training is resumed.

MLflow takes seconds to import, so processes that only pass a run on do without.
"""

import json
import logging
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramen_ray.errors import first_line_of, is_disk_full, redacted, redacted_reason, shown_address
from ramen_ray.tracking.addresses import ARTIFACTS, STORE_VARIABLE, TrackingError, place_beside

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Metric
    from mlflow.tracking import MlflowClient

MODELS = "models:/"  # how the URI of a model begins
PARENT_TAG = "mlflow.parentRunId"
ORIGIN_TAGS = ("mlflow.source.", "mlflow.user")
DESCRIPTION_TAG = "mlflow.note.content"
REGISTERED_TAG = "registered_as"  # the version that was last registered from a sweep
MODEL_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
"""Opens the view of trained models, in UIs without a switch of their own for it."""
SIGNS_OF_NO_STORE = ("API request to", "OperationalError")  # in messages about one that is gone
DELETED = "deleted"
NO_SUCH_RUN = "RESOURCE_DOES_NOT_EXIST"
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # begin URIs of stores without a server
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4"  # half a minute; with MLflow's 7 it is four
NO_ADDRESSES = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"  # MLflow prints them with the password
LONGEST_DIGEST = 36  # of a dataset
FEW_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}

Point = tuple[str, float, int]  # a metric's name, its value and the step


@dataclass(frozen=True)
class Run:
    """A run in an MLflow store; holds plain values only, as it is sent to Ray's workers."""

    uri: str  # URI of the store
    id: str  # id of the run in it

    @property
    def client(self) -> "MlflowClient":
        """MLflow's client for the store."""
        return new_client(self.uri)

    def log_parameters(self, parameters: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Log the flat configuration and tags; parameters that the run already has are kept."""
        from mlflow.entities import Param

        client = self.client
        old = client.get_run(self.id).data.params
        new = {key: value for key, value in parameters.items() if key not in old}
        params = [Param(key, shown_address(str(value))) for key, value in new.items()]
        client.log_batch(self.id, params=params)
        for key, value in tags.items():
            client.set_tag(self.id, key, value)

    def log_dataset(
        self, name: str, fingerprint: str, path: Path, figures: Mapping[str, float]
    ) -> None:
        """Log the dataset directory that the run was made from, unless the run has it."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"uri": path.as_uri()})
        profile = json.dumps(dict(figures))
        dataset = Dataset(name, fingerprint[:LONGEST_DIGEST], "local", source, profile=profile)
        training = InputTag("mlflow.data.context", "training")
        self.client.log_inputs(self.id, [DatasetInput(dataset, [training])])

    def add_registered(self, name: str, version: str) -> None:
        """Let the description, and later ones, begin with a link to a version of a model."""
        link = f"Registered: [{name} version {version}](#/models/{name}/versions/{version})"
        described = self.client.get_run(self.id).data.tags.get(DESCRIPTION_TAG, "")
        if link not in described:
            self.client.set_tag(self.id, REGISTERED_TAG, link)
            self.describe(described)

    def describe(self, text: str) -> None:
        """Set the run's description, Markdown, which the UI shows first."""
        registered = self.client.get_run(self.id).data.tags.get(REGISTERED_TAG, "")
        self.client.set_tag(self.id, DESCRIPTION_TAG, f"{registered}\n\n{text}".lstrip())

    def log_metrics(
        self, metrics: Mapping[str, float], step: int = 0, model_id: str | None = None
    ) -> None:
        """Log ``metrics`` at one step; also as those of the model ``model_id``, if it is given."""
        points = [(name, value, step) for name, value in metrics.items()]
        self.client.log_batch(self.id, metrics=mlflow_metrics(points, model_id=model_id))

    def log_artifacts(self, path: Path) -> None:
        """Upload a file, or the content of a folder."""
        log = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
        log(self.id, str(path))

    def log_first_artifact(self, file: Path) -> None:
        """Upload a file early, to see before hours of training that it can be; or TrackingError."""
        try:
            self.log_artifacts(file)
        except Exception as error:  # each store of artifacts has classes of its own
            if is_disk_full(error):
                raise
            where = self.client.get_run(self.id).info.artifact_uri
            reason = redacted_reason(first_line_of(error), where)
            message = f"cannot write artifacts to {shown_address(where)}: {reason}"
            raise TrackingError(message) from None  # the cause may contain a password

    def link_to(self, artifact: str) -> str:
        """Return a link, in Markdown, by which the UI opens one of the run's artifacts."""
        return self.link_to_run(artifact, f"{self.id}/artifacts/{artifact}")

    def link_to_run(self, name: str, run_id: str) -> str:
        """Return a link, in Markdown, by which the UI opens another run of the same experiment."""
        experiment = self.client.get_run(self.id).info.experiment_id
        return f"[{name}](#/experiments/{experiment}/runs/{run_id})"

    def rename(self, name: str) -> None:
        """Give the run another name, which the UI's list shows; its folder keeps its own."""
        self.client.update_run(self.id, name=name)

    def read_history(self, metric: str) -> tuple[list[int], list[float]]:
        """Return a metric's steps and values in step order."""
        history = self.client.get_metric_history(self.id, metric_name(metric))
        points = sorted((point.step, point.value) for point in history)
        return [step for step, _ in points], [value for _, value in points]

    def read_histories(self, prefix: str) -> dict[str, tuple[list[int], list[float]]]:
        """Return the steps and values of all metrics that start with ``prefix``, by name."""
        metrics = self.client.get_run(self.id).data.metrics
        names = sorted(name for name in metrics if name.startswith(prefix))
        return {name: self.read_history(name) for name in names}

    def close(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self.client.set_terminated(self.id, status)

    def close_if_open(self, status: str) -> None:
        """End the run if it still counts as running after its process was killed."""
        if self.client.get_run(self.id).info.status == "RUNNING":
            self.close(status)

    def close_children_left_open(self) -> None:
        """End the children of this run that still count as running, as KILLED."""
        experiment = self.client.get_run(self.id).info.experiment_id
        running = f"tags.`{PARENT_TAG}` = '{self.id}' and attributes.status = 'RUNNING'"
        for child in self.client.search_runs([experiment], running):
            Run(self.uri, child.info.run_id).close("KILLED")

    @contextmanager
    def closing(self, nested: bool = False) -> Iterator[None]:
        """End the run with the block: as FINISHED, as KILLED if interrupted, or else as FAILED.

        Raises a TrackingError, and leaves the status as it is, if the store does not answer.
        """
        try:
            yield
            self.close("FINISHED")
        except SystemExit:
            if not nested:  # else the sweep that stops its process sets it
                self._close_if_possible("KILLED")
            raise
        except mlflow_error() as error:
            self._close_if_possible("FAILED")
            if not any(sign in str(error) for sign in SIGNS_OF_NO_STORE):
                raise
            again = "run the same command again when it answers"
            raise TrackingError(f"{cannot_use(self.uri, error)}; {again}") from None
        except BaseException as error:
            status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
            self._close_if_possible(status)
            raise

    def _close_if_possible(self, status: str) -> None:
        """End the run because of an error, which must not be hidden by one of the store."""
        with few_retries(), suppress(mlflow_error(), OSError):
            self.close(status)


def open_run(
    uri: str,
    experiment: str,
    name: str,
    output: Path,
    run_id: str | None = None,
    parent: Run | None = None,
) -> Run:
    """Create a run, as a child of ``parent`` if given, or reopen ``run_id``; or a TrackingError."""
    try:
        client = new_client(uri)
        with few_retries():
            entry = client.get_experiment_by_name(experiment)
        if entry is not None and (beside := place_beside(uri, entry.artifact_location)):
            raise TrackingError(
                f"it was moved, but its experiment {experiment!r} keeps artifacts in "
                f"{entry.artifact_location}; make that a link to {beside}, or choose another "
                f"--experiment"
            )
        if run_id is not None:
            info = client.get_run(run_id).info
            _refuse_deleted_experiment(uri, client.get_experiment(info.experiment_id))
            _refuse_deleted(
                uri, info, f"the run {info.run_name!r}", f"runs restore --run-id {run_id}"
            )
            client.update_run(run_id, status="RUNNING")
            return Run(uri, run_id)
        entry = entry or _new_experiment(client, uri, experiment, output)
        _refuse_deleted_experiment(uri, entry)
        created = client.create_run(entry.experiment_id, run_name=name, tags=_origin(parent))
        return Run(uri, str(created.info.run_id))
    except store_errors() as error:
        is_gone = run_id is not None and getattr(error, "error_code", "") == NO_SUCH_RUN
        hint = "; bring back the store that has this run, or choose another name" * is_gone
        # no cause, as it may contain a password
        raise TrackingError(cannot_use(uri, error) + hint) from None


def _refuse_deleted_experiment(uri: str, experiment: "Experiment") -> None:
    command = f"experiments restore --experiment-id {experiment.experiment_id}"
    _refuse_deleted(uri, experiment, f"--experiment {experiment.name}", command)


def _refuse_deleted(uri: str, entry: Any, what: str, command: str) -> None:
    """Raise a TrackingError if an experiment or a run was deleted; the ``command`` restores it."""
    if entry.lifecycle_stage == DELETED:
        restore = f"{STORE_VARIABLE}={shlex.quote(redacted(uri))} mlflow {command}"
        raise TrackingError(f"{what} was deleted; restore it ({restore}), or choose another name")


def _origin(parent: Run | None) -> dict[str, str]:
    """Return the tags by which the UI shows user, source, git commit and parent."""
    from mlflow.tracking.context.registry import resolve_tags

    if parent is None:
        return {name: redacted(value) for name, value in resolve_tags().items()}
    tags = parent.client.get_run(parent.id).data.tags
    origin = {name: tag for name, tag in tags.items() if name.startswith(ORIGIN_TAGS)}
    return {PARENT_TAG: parent.id, **origin}


def _new_experiment(client: "MlflowClient", uri: str, name: str, output: Path) -> "Experiment":
    """Create an experiment, unless another process does; a server keeps artifacts itself."""
    artifacts = (output.absolute() / ARTIFACTS).as_uri() if uri.startswith(DATABASES) else None
    try:
        client.create_experiment(name, artifacts, MODEL_TRAINING)
    except mlflow_error():
        if client.get_experiment_by_name(name) is None:
            raise
    return client.get_experiment_by_name(name)


def mlflow_error() -> type[Exception]:
    """Return the class of MLflow's errors, which takes as long to import as all of it."""
    from mlflow.exceptions import MlflowException

    return MlflowException


def new_client(uri: str) -> "MlflowClient":
    """Return MLflow's client for a store; MLflow then logs errors and warnings only."""
    from mlflow.tracking import MlflowClient

    os.environ.setdefault(*RETRIES)
    os.environ[NO_ADDRESSES] = "true"
    for name in ("mlflow", "alembic"):  # after the import, which sets mlflow's level
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("mlflow.store.db.utils", "mlflow.utils.git_utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # raises what it logs; there is no git
    logging.getLogger("urllib3.connectionpool").addFilter(_without_secrets)  # what it tries again
    return MlflowClient(tracking_uri=uri)


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg = redacted(record.getMessage())
    record.args = ()
    return True


def mlflow_metrics(
    points: Iterable[Point], at: float | None = None, model_id: str | None = None
) -> "list[Metric]":
    """Convert points to MLflow's metrics, all with the time ``at`` in seconds, by default now."""
    from mlflow.entities import Metric

    milliseconds = int((time.time() if at is None else at) * 1000)
    return [
        Metric(metric_name(name), float(value), milliseconds, step, model_id=model_id)
        for name, value, step in points
    ]


@contextmanager
def few_retries() -> Iterator[None]:
    """Let requests in the block fail within seconds, not minutes, if the server is gone."""
    with kept_environment(*FEW_RETRIES):
        os.environ.update(FEW_RETRIES)
        yield


@contextmanager
def kept_environment(*names: str) -> Iterator[None]:
    """Undo what the block does to these variables of the environment."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return ``metrics`` under names that begin with ``prefix``."""
    return {prefix + name: value for name, value in metrics.items()}


def metric_name(name: str) -> str:
    """Return a metric's name as MLflow allows it: ``P@1`` becomes ``P_at_1``."""
    return name.replace("@", "_at_")


def store_errors() -> tuple[type[Exception], ...]:
    """Return what MLflow raises if a store cannot be used; ValueError is of a malformed address."""
    from sqlalchemy.exc import SQLAlchemyError

    return mlflow_error(), SQLAlchemyError, OSError, ImportError, ValueError


def cannot_use(uri: str, error: Exception) -> str:
    """Say in one line why the store cannot be used, without its password."""
    reason = first_line_of(error)
    if of_database := re.search(r"^\(\S*Error\) (.+)$", str(error), re.MULTILINE):
        reason = of_database[1]  # SQLAlchemy's own advice comes first
    if isinstance(error, ImportError) and error.name:
        reason = f"it needs the package {error.name!r}, which is not installed"
    return f"cannot use the MLflow store {shown_address(uri)}: {redacted_reason(reason, uri)}"
