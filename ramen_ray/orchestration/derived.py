"""Retrievers made from others: logged as runs of their own, and chosen in their place."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen_ray.config import RunConfig
from ramen_ray.tracking.registry import LoggedRetriever, Registry, uri_of
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import close_run, log_parameters, open_run


@dataclass(frozen=True)
class Derived:
    """A retriever that was made from another and logged.

    Attributes:
        run_id: the MLflow run of its own.
        model_id: of the logged model.
    """

    run_id: str
    model_id: str

    @property
    def uri(self) -> str:
        """The address by which MLflow loads it."""
        return uri_of(self.model_id)


def log_derived(
    registry: Registry,
    original: LoggedRetriever,
    folder: Path,
    example: list[str],
    changes: Mapping[str, Any],
    output: Path,
) -> Derived:
    """Log a changed copy of a retriever, with the parameters of the original's training.

    Args:
        registry: of the store that the original is in.
        original: what the copy was made from.
        folder: the changed copy.
        example: a few queries.
        changes: parameters of the run and facts of the model that differ from the original's.
        output: where artifacts go if no server keeps them.
    """
    run_id = open_run(registry.uri, RunConfig().experiment, "derived", output, None)
    parameters = {**registry.parameters(original.run_id), **changes}
    log_parameters(registry.uri, run_id, parameters, {"derived_from": original.uri})
    facts = {**original.facts, **changes}
    model_id = log_retriever(registry.uri, run_id, folder, example, facts)
    close_run(registry.uri, run_id, "FINISHED")
    return Derived(run_id, model_id)


def take_place(registry: Registry, derived: Derived, model_uri: str) -> str:
    """Register a derived retriever under its original's name, and give it the alias that was named.

    Args:
        registry: of the store that both are in.
        derived: the new one.
        model_uri: how the original was named: ``models:/NAME@ALIAS``, ``models:/NAME/VERSION``, or
            ``models:/MODEL_ID``, which is not registered.

    Returns:
        The new one's address.
    """
    named = re.fullmatch(r"models:/([^/@]+)(?:@(.+)|/\d+)", model_uri)
    if named is None:
        return derived.uri
    name, alias = named.groups()
    version = registry.register(name, derived.run_id, derived.model_id)
    if alias:
        registry.choose(version, alias)
    return f"models:/{name}/{version.version}"
