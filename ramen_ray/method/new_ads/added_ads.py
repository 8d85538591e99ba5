"""Vectors of ads that come after training, where a retriever has a combiner."""

from pathlib import Path

import pyarrow as pa

from ramen_ray.data.tables.new_ads import NewAds, read_first_clicks
from ramen_ray.errors import UserError
from ramen_ray.method.model.dual_encoder import Embeddings
from ramen_ray.method.new_ads.representation import combiner_of
from ramen_ray.method.retrieval.retriever_folder import Represent, text_embedder


class NewAdsError(UserError):
    """New ads cannot be added with these clicks."""


def representation_of(folder: Path, new: pa.Table, source: NewAds) -> Represent | None:
    """Return what makes a retriever's vectors of new ads' embeddings; None without a combiner.

    Raises a NewAdsError if there are clicks, which only a combiner can use.
    """
    combined = combiner_of(folder)
    if combined is None:
        if source.clicks is not None:
            raise NewAdsError(
                f"the retriever has no combiner, so it cannot use the clicks {source.clicks}; "
                f"leave them out, or train a combiner (jobs/combine.py)"
            )
        return None
    if source.clicks is None:
        return lambda _, vectors: combined.represent(vectors)
    rows, texts = read_first_clicks(source, new)
    queries = text_embedder(folder, "queries")(texts)

    def represent(first: int, vectors: Embeddings) -> Embeddings:
        inside = (rows >= first) & (rows < first + len(vectors))
        return combined.represent(vectors, revealed=(rows[inside] - first, queries[inside]))

    return represent
