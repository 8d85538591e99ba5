"""Changed copies of a retriever, which take its place in the registry."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramen_ray.tracking.aliases import MovedError, give, holder_of
from ramen_ray.tracking.registry import COPY_OF, LoggedRetriever, Registry, ask_once, uri_of
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
    """Log the ``folder`` with a changed copy of a retriever, as a run of its own.

    It gets the parameters of the original's training, and ``changes`` of these and of the model's
    metadata. Artifacts go into ``output`` if no server keeps them.
    """
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
