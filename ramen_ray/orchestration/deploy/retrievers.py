"""Which retriever a user means, and changed copies that take its place in the registry."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramen_ray.method.metrics.ranking import METRICS
from ramen_ray.orchestration.run.directory import RUN_FILE, RUNS, RunDirectory
from ramen_ray.tracking.aliases import MovedError, give, holder_of, name_and_alias
from ramen_ray.tracking.registry import (
    COPY_OF,
    LoggedRetriever,
    Registry,
    RegistryError,
    ask_once,
    uri_of,
)
from ramen_ray.tracking.runs import MODELS, open_run


def retriever_uri(registry: Registry, named: str | None, output: Path) -> str:
    """Return the URI of a retriever that is ``named`` by it, or by a run's or sweep's folder or id.

    None names that of the run in ``output``, the folder that has ``runs``, that was finished last.
    Raises a RegistryError if there is no such folder, finished run or retriever.
    """
    if named is not None and named.startswith(MODELS):
        registry.look_up(named)
        return named
    if named is None:
        files = (output / RUNS).glob(f"*/{RUN_FILE}")
        latest_first = sorted(files, key=lambda file: -file.stat().st_mtime)
        finished = (file for file in latest_first if RunDirectory(file.parent).is_finished)
        if (last := next(finished, None)) is None:
            raise RegistryError(
                f"{output / RUNS} has no finished run; train one (python jobs/train.py), or name a "
                f"retriever, such as models:/NAME@champion"
            )
        named = str(last.parent)
    return uri_of(find_logged(registry, named, None)[1][1])


def find_candidate(
    registry: Registry, run: str, named: str, metric: str | None
) -> tuple[str, tuple[str, str]]:
    """Return what :func:`find_logged` does, of a run to promote as ``named``, ``NAME@ALIAS``.

    Raises a RegistryError, too, if name, alias or metric cannot be.
    """
    if metric is not None and metric not in METRICS:
        raise RegistryError(f"the metric {metric!r} is not one of {', '.join(METRICS)}")
    registry.check_name(*name_and_alias(named))
    return find_logged(registry, run, metric)


def find_logged(registry: Registry, run: str, metric: str | None) -> tuple[str, tuple[str, str]]:
    """Return a run's id, and what :meth:`Registry.find_logged` returns; or its errors."""
    run_id = mlflow_run_id(run)
    return run_id, registry.find_logged(run_id, metric)


def mlflow_run_id(run: str) -> str:
    """Return the id of a folder's MLflow run, or ``run``, if it is an id; or a RegistryError."""
    folder = Path(run)
    if RunDirectory(folder).is_run:
        run_id = RunDirectory(folder).mlflow_run_id
        if run_id is None:
            raise RegistryError(f"the run {run} has not started yet")
        return run_id
    if folder.is_dir() or len(folder.parts) > 1:  # which no id is
        lack = "is not that of a run" if folder.is_dir() else "does not exist"
        raise RegistryError(f"the folder {run} {lack}; give one such as outputs/{RUNS}/NAME")
    return run


def log_copy(
    registry: Registry,
    original: LoggedRetriever,
    folder: Path,
    example: list[str],
    changes: Mapping[str, Any],
    output: Path,
) -> LoggedRetriever:
    """Log the ``folder`` with a changed copy of a retriever, as a run of its own.

    It gets the parameters of the original's training, and ``changes`` of these and of the model's
    metadata. Artifacts go into ``output`` if no server keeps them.
    """
    from ramen_ray.tracking.retriever import log_retriever  # imports faiss

    parameters = registry.parameters(original.run_id)
    name = "-".join(
        [str(original.metadata.get("dataset", "copy")), *sorted({*changes} - {"num_ads"})]
    )
    run = open_run(registry.uri, parameters["experiment"], name, output)
    with run.closing():
        run.log_parameters({**parameters, **changes}, {COPY_OF: original.uri})
        metadata = {**original.metadata, **changes}
        model_id = log_retriever(run, folder, example, metadata)
    return registry.look_up(uri_of(model_id))


def take_place(
    registry: Registry,
    copy: LoggedRetriever,
    original: LoggedRetriever,
    model_uri: str,
    description: str,
) -> str:
    """Register a changed copy under its original's name, and move the named alias to it.

    The new version gets a ``description``, which the MLflow UI shows.
    A ``model_uri`` without a name (``models:/MODEL_ID``) registers nothing. Returns the copy's URI.
    Raises a RegistryError if the copy does not answer, and a MovedError, before anything is
    registered, if the alias is not the original's any more.
    """
    named = re.fullmatch(r"models:/([^/@]+)(?:@(.+)|/\d+)", model_uri)
    if named is None:
        return copy.uri
    name, alias = named.groups()
    ask_once(registry.load(copy.uri))
    if alias:
        holder = holder_of(registry, name, alias)
        if not holder.has_alias or registry.look_up(holder.uri).model_id != original.model_id:
            raise MovedError(name, alias)
        number = give(registry, alias, copy.run_id, copy.model_id, holder)
    else:
        number = registry.register(name, copy.run_id, copy.model_id)
    registry.describe(name, number, description)
    return f"models:/{name}/{number}"
