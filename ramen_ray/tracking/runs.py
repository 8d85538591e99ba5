"""MLflow runs: one per training, continued when the training is."""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from numpy.typing import NDArray

from ramen_ray.errors import UserError, first_line_of

LAST_STEP = "ramen_ray.last_{}_step"
LAST_LOSSES = LAST_STEP.format("losses")
LAST_VALIDATION = LAST_STEP.format("validation")
MAX_METRICS_PER_BATCH = 1000


class TrackingError(UserError):
    """The MLflow store cannot be used, or a page cannot be written."""


def tracking_uri(output: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or else the address of a sqlite store in ``output``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{output.absolute()}/mlflow.db"


def open_run(
    uri: str,
    experiment: str,
    name: str,
    output: Path,
    run_id: str | None,
    parent_run_id: str | None = None,
) -> str:
    """Create a run, as part of another if that is given, or reopen ``run_id``; returns its id.

    An experiment that is new keeps its artifacts in ``output``, unless a server keeps them.

    Raises:
        TrackingError: the store cannot be read or written.
    """
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        client = MlflowClient(tracking_uri=uri)
        if run_id is not None:
            client.update_run(run_id, status="RUNNING")
            return run_id
        known = client.get_experiment_by_name(experiment)
        local = uri.startswith("sqlite:")
        artifacts = (output.absolute() / "mlartifacts").as_uri() if local else None
        experiment_id = (
            known.experiment_id
            if known is not None
            else client.create_experiment(experiment, artifact_location=artifacts)
        )
        tags = {} if parent_run_id is None else {MLFLOW_PARENT_RUN_ID: parent_run_id}
        return str(client.create_run(experiment_id, run_name=name, tags=tags).info.run_id)
    except (MlflowException, OSError) as error:
        raise TrackingError(f"cannot use the MLflow store {uri}: {first_line_of(error)}") from error


def log_parameters(
    uri: str, run_id: str, parameters: Mapping[str, Any], tags: Mapping[str, str]
) -> None:
    """Log the flat configuration and tags; parameters that the run has already are left."""
    client = MlflowClient(tracking_uri=uri)
    known = client.get_run(run_id).data.params
    new = [Param(key, str(value)) for key, value in parameters.items() if key not in known]
    client.log_batch(run_id, params=new)
    for key, value in tags.items():
        client.set_tag(run_id, key, value)


def log_metrics(
    uri: str,
    run_id: str,
    metrics: Mapping[str, float],
    step: int = 0,
    model_id: str | None = None,
) -> None:
    """Log ``metrics`` of a run at one step, and of a model that it has logged if one is given.

    Names may hold ``@``, which MLflow does not allow.
    """
    now = int(time.time() * 1000)
    batch = [
        Metric(metric_name(key), float(value), now, step, model_id=model_id)
        for key, value in metrics.items()
    ]
    MlflowClient(tracking_uri=uri).log_batch(run_id, metrics=batch)


def log_artifacts(uri: str, run_id: str, path: Path, folder: str | None = None) -> None:
    """Upload a file, or what lies in a folder, into the run's artifact ``folder``."""
    client = MlflowClient(tracking_uri=uri)
    if path.is_dir():
        client.log_artifacts(run_id, str(path), folder)
    else:
        client.log_artifact(run_id, str(path), folder)


def close_run(uri: str, run_id: str, status: str) -> None:
    """End a run as FINISHED, FAILED or KILLED."""
    MlflowClient(tracking_uri=uri).set_terminated(run_id, status)


@contextmanager
def closing_run(uri: str, run_id: str, is_part: bool = False) -> Iterator[None]:
    """End a run with the block: as FINISHED, KILLED if it was interrupted, or else FAILED.

    Args:
        uri: the MLflow store.
        run_id: the run.
        is_part: of a search, which says how a run ended when it ends the run's process.
    """
    try:
        yield
    except SystemExit:
        if not is_part:
            close_run(uri, run_id, "KILLED")
        raise
    except BaseException as error:
        close_run(uri, run_id, "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise
    close_run(uri, run_id, "FINISHED")


def close_run_if_open(uri: str, run_id: str, status: str) -> None:
    """End a run that still counts as running, since its process was ended."""
    client = MlflowClient(tracking_uri=uri)
    if client.get_run(run_id).info.status == "RUNNING":
        client.set_terminated(run_id, status)


def close_parts_left_open(uri: str, run_id: str) -> None:
    """End, as KILLED, the parts of a run that still count as running, with no process behind."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_run(run_id).info.experiment_id
    asked = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}' and attributes.status = 'RUNNING'"
    for part in client.search_runs([experiment], asked):
        client.set_terminated(part.info.run_id, "KILLED")


def read_history(uri: str, run_id: str, metric: str) -> tuple[list[int], list[float]]:
    """Return a metric's steps and values in step order."""
    history = MlflowClient(tracking_uri=uri).get_metric_history(run_id, metric_name(metric))
    points = sorted((point.step, point.value) for point in history)
    return [step for step, _ in points], [value for _, value in points]


def read_histories(uri: str, run_id: str, prefix: str) -> dict[str, tuple[list[int], list[float]]]:
    """Return the steps and values of all metrics whose names start with ``prefix``, by name."""
    metrics = MlflowClient(tracking_uri=uri).get_run(run_id).data.metrics
    names = sorted(name for name in metrics if name.startswith(prefix))
    return {name: read_history(uri, run_id, name) for name in names}


def log_predictions(uri: str, run_id: str, columns: Mapping[str, list[object]]) -> None:
    """Log sample predictions as a table that the MLflow UI shows."""
    table = pd.DataFrame(columns, dtype=object)  # MLflow trips over pandas' own strings
    MlflowClient(tracking_uri=uri).log_table(run_id, table, "sample_predictions.json")


def metric_name(name: str) -> str:
    """Spell a metric as MLflow allows: ``P@1`` becomes ``P_at_1``."""
    return name.replace("@", "_at_")


class StepLogger:
    """Logs losses, validations and renewals as they come, each once even when computed twice.

    A run that goes on from a checkpoint repeats the steps after it, and what the store has already
    is passed over: it is the same, unless background results come at another time now.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        """Attach to a run."""
        self._client = MlflowClient(tracking_uri=uri)
        self._run_id = run_id
        tags = self._client.get_run(run_id).data.tags
        prefix = LAST_STEP.partition("{")[0]
        known = {tag: int(step) for tag, step in tags.items() if tag.startswith(prefix)}
        self._last = defaultdict(int, known)

    def log_losses(
        self, names: list[str], values: NDArray[Any], known: NDArray[np.bool_], last_step: int
    ) -> None:
        """Log the ``known`` ones (steps, names) of ``values``, which is of the same shape.

        The last row is of step ``last_step`` (from 1).
        """
        now = int(time.time() * 1000)
        first = last_step - len(values) + 1
        fresh = max(self._last[LAST_LOSSES] - first + 1, 0)
        metrics = [
            Metric(metric_name(names[column]), float(values[row, column]), now, first + row)
            for row, column in np.argwhere(known).tolist()
            if row >= fresh
        ]
        self._log(metrics, LAST_LOSSES, last_step)

    def log_validation(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a validation's metrics after ``step`` steps."""
        self._log_once(metrics, LAST_VALIDATION, step)

    def log_renewal(self, name: str, metrics: Mapping[str, float], step: int) -> None:
        """Log what is known of what is renewed, such as the graph, and used from ``step`` on."""
        named = {f"{name}/{key}": value for key, value in metrics.items()}
        self._log_once(named, LAST_STEP.format(name), step)

    def _log_once(self, metrics: Mapping[str, float], tag: str, step: int) -> None:
        if step > self._last[tag]:
            now = int(time.time() * 1000)
            batch = [Metric(metric_name(k), float(v), now, step) for k, v in metrics.items()]
            self._log(batch, tag, step)

    def _log(self, metrics: list[Metric], tag: str, step: int) -> None:
        if not metrics:
            return
        for start in range(0, len(metrics), MAX_METRICS_PER_BATCH):
            chunk = metrics[start : start + MAX_METRICS_PER_BATCH]
            self._client.log_batch(self._run_id, metrics=chunk)
        self._client.set_tag(self._run_id, tag, str(step))
        self._last[tag] = step


def ui_command(uri: str) -> str:
    """Return the command that shows the store in a browser."""
    if uri.startswith("http"):
        return f"open {uri}"
    return f"mlflow ui --host 127.0.0.1 --backend-store-uri {uri}"
