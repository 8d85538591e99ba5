"""Add ads to a retriever's index without training: a new version with the same encoder."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ramen_ray.config import RunConfig
from ramen_ray.data.new_ads import read_new_ads
from ramen_ray.method.retriever import add_ads, known_ids
from ramen_ray.tracking.registry import LoggedRetriever, Registry, uri_of
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import close_run, log_parameters, open_run

EXAMPLE_ADS = 2


@dataclass(frozen=True)
class Extended:
    """A retriever with more ads.

    Attributes:
        model_uri: its address; that of its version where the old one was named by a version.
        num_ads: how many ads it has now.
        num_new: how many of them are new.
    """

    model_uri: str
    num_ads: int
    num_new: int


def extend_retriever(registry: Registry, model_uri: str, ads: str, output: Path) -> Extended:
    """Log a copy of a retriever that answers with new ads too.

    Named by a version or an alias, the copy is registered under the same name, and takes over the
    alias.

    Args:
        registry: of the store that the retriever is in.
        model_uri: see :meth:`Registry.look_up`.
        ads: columns ``ad_id`` and ``text``, in CSV, TSV, JSON lines or parquet.
        output: where artifacts go if no server keeps them.

    Raises:
        DatasetError: the table cannot be read, or an id is taken.
        RegistryError, TrackingError: there is no such retriever.
    """
    retriever = registry.look_up(model_uri)
    with tempfile.TemporaryDirectory() as aside:
        folder = registry.download(retriever.uri, Path(aside))
        new = read_new_ads(ads, known_ids(folder))
        num_ads = add_ads(folder, new)
        texts = new["text"][:EXAMPLE_ADS].to_pylist()
        facts = {**retriever.facts, "num_ads": num_ads}
        run_id = _open_run(registry, retriever, ads, output)
        model_id = log_retriever(registry.uri, run_id, folder, texts, facts)
        close_run(registry.uri, run_id, "FINISHED")
    named = re.fullmatch(r"models:/([^/@]+)(?:@(.+)|/\d+)", model_uri)
    if named is None:
        return Extended(uri_of(model_id), num_ads, len(new))
    name, alias = named.groups()
    version = registry.register(name, run_id, model_id)
    if alias:
        registry.choose(version, alias)
    return Extended(f"models:/{name}/{version.version}", num_ads, len(new))


def _open_run(registry: Registry, retriever: LoggedRetriever, ads: str, output: Path) -> str:
    """Begin a run that says what it was made from, as its parameters those of the training."""
    run_id = open_run(registry.uri, RunConfig().experiment, "new-ads", output, None)
    parameters = {**registry.parameters(retriever.run_id), "new_ads": ads}
    log_parameters(registry.uri, run_id, parameters, {"extends": retriever.uri})
    return run_id
