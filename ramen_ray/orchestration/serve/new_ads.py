"""Add ads to a retriever's index without training; the new version has the same encoder.

If the retriever has a combiner, it makes the new ads' vectors.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ramen_ray.config import GB_PER_SHARD
from ramen_ray.data.tables.new_ads import NewAds, read_first_clicks, read_new_ads
from ramen_ray.errors import UserError
from ramen_ray.method.model.dual_encoder import Embeddings
from ramen_ray.method.novel_ads.retriever import combiner_of
from ramen_ray.method.retrieval.retriever_folder import add_ads, known_ids, text_embedder
from ramen_ray.orchestration.serve.versions import log_copy, take_place
from ramen_ray.tracking.registry import Registry

EXAMPLE_ADS = 2


class NewAdsError(UserError):
    """New ads cannot be added with these clicks."""


@dataclass(frozen=True)
class Extended:
    """A retriever with more ads: how many it has now, and the new ones among them."""

    model_uri: str  # models:/NAME/VERSION if the original was given by a name
    num_ads: int
    num_new: int


def extend_retriever(registry: Registry, model_uri: str, given: NewAds, output: Path) -> Extended:
    """Log a copy of a retriever that also has new ads, and put it in the original's place.

    See :func:`~ramen_ray.orchestration.serve.versions.take_place`; artifacts go into ``output`` if
    no server keeps them.

    Raises:
        DatasetError: a table cannot be read, an id is in use, or a click is not on a new ad.
        NewAdsError: there are clicks, but the retriever has no combiner to use them.
        RegistryError, TrackingError: there is no such retriever, or its alias was moved meanwhile.
    """
    original = registry.look_up(model_uri)
    with tempfile.TemporaryDirectory() as aside:
        folder = registry.download(original.uri, Path(aside))
        new = read_new_ads(given.ads, known_ids(folder), given.columns)
        represent = _represent(folder, new, given, original.uri)
        num_ads = add_ads(folder, new, GB_PER_SHARD, represent)
        texts = new["text"][:EXAMPLE_ADS].to_pylist()
        changes = {"num_ads": num_ads, "new_ads": given.ads}
        copy = log_copy(registry, original, folder, texts, changes, output)
    return Extended(take_place(registry, copy, original, model_uri), num_ads, len(new))


def _represent(
    folder: Path, new: pa.Table, given: NewAds, uri: str
) -> Callable[[int, Embeddings], Embeddings] | None:
    """Return a function that turns the new ads' embeddings into vectors; None without combiner."""
    combined = combiner_of(folder)
    if combined is None:
        if given.clicks is not None:
            raise NewAdsError(
                f"{uri} has no combiner, so it cannot use the clicks {given.clicks}; leave them "
                f"out, or train a combiner (jobs/combine.py)"
            )
        return None
    if given.clicks is None:
        return lambda _, vectors: combined.represent(vectors)
    rows, texts = read_first_clicks(given.clicks, new, given.columns)
    queries = text_embedder(folder, "queries")(texts)

    def represent(first: int, vectors: Embeddings) -> Embeddings:
        inside = (rows >= first) & (rows < first + len(vectors))
        return combined.represent(vectors, revealed=(rows[inside] - first, queries[inside]))

    return represent
