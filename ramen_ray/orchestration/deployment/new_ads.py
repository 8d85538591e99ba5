"""Add ads to a retriever's index without training; the new version has the same encoder."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from ramen_ray.data.importers.new_ads import read_new_ads
from ramen_ray.method.retrieval.retriever import add_ads, known_ids
from ramen_ray.orchestration.deployment.copies import log_copy, take_place
from ramen_ray.tracking.registry import Registry

EXAMPLE_ADS = 2


@dataclass(frozen=True)
class Extended:
    """A retriever with more ads.

    Attributes:
        model_uri: its URI; with its version if the original was named by a version.
        num_ads: number of ads it has now.
        num_new: number of new ones among them.
    """

    model_uri: str
    num_ads: int
    num_new: int


def extend_retriever(registry: Registry, model_uri: str, ads: str, output: Path) -> Extended:
    """Log a copy of a retriever that also has new ads, and put it in the original's place.

    Args:
        registry: the registry of the retriever's store.
        model_uri: see :func:`~ramen_ray.orchestration.deployment.copies.take_place`.
        ads: a table with the columns ``ad_id`` and ``text``: CSV, TSV, JSON lines or parquet.
        output: where artifacts go if no server keeps them.

    Raises:
        DatasetError: the table cannot be read, or an id is in use.
        RegistryError, TrackingError: there is no such retriever, or its alias was moved meanwhile.
    """
    original = registry.look_up(model_uri)
    with tempfile.TemporaryDirectory() as aside:
        folder = registry.download(original.uri, Path(aside))
        new = read_new_ads(ads, known_ids(folder))
        num_ads = add_ads(folder, new)
        texts = new["text"][:EXAMPLE_ADS].to_pylist()
        changes = {"num_ads": num_ads, "new_ads": ads}
        copy = log_copy(registry, original, folder, texts, changes, output)
    return Extended(take_place(registry, copy, original, model_uri), num_ads, len(new))
