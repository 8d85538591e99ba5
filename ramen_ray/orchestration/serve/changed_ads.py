"""Add, replace and remove ads of a retriever without training; a combiner makes new vectors."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ramen_ray.config import GB_PER_SHARD
from ramen_ray.data.tables.new_ads import NewAds, read_changes, read_first_clicks
from ramen_ray.errors import UserError
from ramen_ray.method.model.dual_encoder import Embeddings
from ramen_ray.method.novel_ads.representation import combiner_of
from ramen_ray.method.retrieval.retriever_folder import (
    add_ads,
    keep_ads,
    known_ads,
    text_embedder,
    write_ads,
)
from ramen_ray.orchestration.serve.retrievers import log_copy, take_place
from ramen_ray.tracking.registry import Registry

EXAMPLE_ADS = 2


class NewAdsError(UserError):
    """New ads cannot be added with these clicks."""


@dataclass(frozen=True)
class Extended:
    """A retriever with other ads: how many it has now, and what has become of how many."""

    model_uri: str  # models:/NAME/VERSION if the original was given by a name
    num_ads: int
    num_new: int
    num_changed: int
    num_refiltered: int
    num_removed: int
    num_unknown: int


def extend_retriever(registry: Registry, model_uri: str, given: NewAds, output: Path) -> Extended:
    """Log a copy of a retriever with other ads, and put it in the original's place.

    If nothing would change, there is no copy. Artifacts go into ``output`` if no server keeps them.
    See :func:`~ramen_ray.orchestration.serve.retrievers.take_place`.

    Raises:
        DatasetError: a table cannot be read, an id is in use, or a click is not on a new ad.
        NewAdsError: there are clicks, but the retriever has no combiner to use them.
        RegistryError, TrackingError: there is no such retriever, or its alias was moved meanwhile.
    """
    original = registry.look_up(model_uri)
    with tempfile.TemporaryDirectory() as aside:
        folder = registry.download(original.uri, Path(aside))
        known = known_ads(folder)
        changes = read_changes(given, known)
        new, num_gone = changes.added, len(known) - len(changes.rows)
        num_ads = len(changes.rows) + len(new)
        counts = (
            len(new) - changes.num_changed,
            changes.num_changed,
            changes.num_refiltered,
            num_gone - changes.num_changed,
            changes.num_unknown,
        )
        if not len(new) and not num_gone and not changes.num_refiltered:
            return Extended(model_uri, num_ads, *counts)
        represent = _represent(folder, new, given, original.uri)
        if num_gone:
            keep_ads(folder, changes.rows)
        write_ads(folder, changes.kept)
        if len(new):
            add_ads(folder, new, GB_PER_SHARD, represent)
        texts = known_ads(folder)["text"][-EXAMPLE_ADS:].to_pylist()
        sources = {"new_ads": given.ads, "removed_ads": given.remove, "all_ads": given.sync}
        made = {"num_ads": num_ads} | {key: one for key, one in sources.items() if one is not None}
        copy = log_copy(registry, original, folder, texts, made, output)
    return Extended(take_place(registry, copy, original, model_uri), num_ads, *counts)


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
    rows, texts = read_first_clicks(given, new)
    queries = text_embedder(folder, "queries")(texts)

    def represent(first: int, vectors: Embeddings) -> Embeddings:
        inside = (rows >= first) & (rows < first + len(vectors))
        return combined.represent(vectors, revealed=(rows[inside] - first, queries[inside]))

    return represent
