"""Retrievers in the registry: which one a user means, changed copies, and taking its place."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramen_ray.orchestration.run.directory import RUN_FILE, RUNS, RunDirectory
from ramen_ray.tracking.registry import (
    COPY_OF,
    LoggedRetriever,
    Registry,
    RegistryError,
    ask_once,
    uri_of,
)
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import MODELS, open_run


def retriever_uri(registry: Registry, named: str | None, output: Path) -> str:
    """Return the URI of a retriever that is ``named`` by it, or by a run's or sweep's folder or id.

    None names that of the run in ``output``, the folder that has ``runs``, that was finished last.

    Raises:
        RegistryError: there is no such folder, no finished run, or no retriever.
    """
    if named is not None and named.startswith(MODELS):
        return named
    run = str(_last_finished(output).path) if named is None else named
    return uri_of(registry.find_logged(mlflow_run_id(run), None)[1])


def mlflow_run_id(run: str) -> str:
    """Return the id of the MLflow run of a run's or a sweep's folder, or ``run``, if it is an id.

    Raises:
        RegistryError: the folder does not exist, is not that of a run, or its run has not begun.
    """
    folder = Path(run)
    if RunDirectory(folder).is_run:
        found = RunDirectory(folder).mlflow_run_id
        if found is None:
            raise RegistryError(f"the run {run} has not started yet")
        return found
    if folder.is_dir() or len(folder.parts) > 1:  # which no id is
        lack = "is not that of a run" if folder.is_dir() else "does not exist"
        raise RegistryError(f"the folder {run} {lack}; give one such as outputs/{RUNS}/NAME")
    return run


def _last_finished(output: Path) -> RunDirectory:
    files = sorted((output / RUNS).glob(f"*/{RUN_FILE}"), key=lambda file: file.stat().st_mtime)
    for file in reversed(files):
        if RunDirectory(file.parent).is_finished:
            return RunDirectory(file.parent)
    raise RegistryError(
        f"{output / RUNS} has no finished run; train one (python jobs/train.py), or name a "
        f"retriever, such as models:/NAME@champion"
    )


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
    parameters = {**registry.parameters(original.run_id), **changes}
    name = "-".join(
        [str(original.metadata.get("dataset", "copy")), *sorted({*changes} - {"num_ads"})]
    )
    run = open_run(registry.uri, parameters["experiment"], name, output)
    with run.closing():
        run.log_parameters(parameters, {COPY_OF: original.uri})
        metadata = {**original.metadata, **changes}
        model_id = log_retriever(run, folder, example, metadata)
    return registry.look_up(uri_of(model_id))


def take_place(
    registry: Registry, copy: LoggedRetriever, original: LoggedRetriever, model_uri: str
) -> str:
    """Register a changed copy under its original's name, and move the named alias to it.

    A ``model_uri`` without a name (``models:/MODEL_ID``) registers nothing. Returns the copy's URI.

    Raises:
        RegistryError: the copy does not answer, or the alias was moved meanwhile.
    """
    named = re.fullmatch(r"models:/([^/@]+)(?:@(.+)|/\d+)", model_uri)
    if named is None:
        return copy.uri
    name, alias = named.groups()
    ask_once(registry.load(copy.uri))
    version = registry.register(name, copy.run_id, copy.model_id)
    made = f"models:/{name}/{version.version}"
    if alias:
        if registry.look_up(model_uri).model_id != original.model_id:
            raise RegistryError(
                f"{name}@{alias} was moved meanwhile, and {made} was made from the earlier version;"
                f" run this again"
            )
        registry.choose(version, alias)
    return made
