"""Changed copies of retrievers: logged as runs of their own, and put in the original's place."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramen_ray.tracking.registry import (
    COPY_OF,
    LoggedRetriever,
    Registry,
    RegistryError,
    ask_once,
    uri_of,
)
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import open_run


def log_copy(
    registry: Registry,
    original: LoggedRetriever,
    folder: Path,
    example: list[str],
    changes: Mapping[str, Any],
    output: Path,
) -> LoggedRetriever:
    """Log a changed copy of a retriever, with the parameters of the original's training.

    Args:
        registry: the registry of the original's store.
        original: the retriever that the copy was made from.
        folder: the changed copy.
        example: a few queries.
        changes: what differs in the run's parameters and the model's metadata.
        output: where artifacts go if no server keeps them.
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

    ``model_uri`` names the original: ``models:/NAME@ALIAS``, ``models:/NAME/VERSION``, or
    ``models:/MODEL_ID``; in the last case the copy is not registered. Returns the copy's URI.

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
