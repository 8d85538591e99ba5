"""Add ads to a retriever's index without training: a new version with the same encoder."""

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
        model_uri: its address; that of its version where the old one was named by a version.
        num_ads: how many ads it has now.
        num_new: how many of them are new.
    """

    model_uri: str
    num_ads: int
    num_new: int


def extend_retriever(registry: Registry, model_uri: str, ads: str, output: Path) -> Extended:
    """Log a copy of a retriever that answers with new ads too, and let it take the place.

    Args:
        registry: of the store that the retriever is in.
        model_uri: see :func:`~ramen_ray.orchestration.deployment.copies.take_place`.
        ads: columns ``ad_id`` and ``text``, in CSV, TSV, JSON lines or parquet.
        output: where artifacts go if no server keeps them.

    Raises:
        DatasetError: the table cannot be read, or an id is taken.
        RegistryError, TrackingError: there is no such retriever, or its alias has moved on.
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
