"""Evaluation of ad vectors on the splits of a dataset with novel ads; queries are unchanged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.method.metrics.judgement import Judgement, Propensity
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.method.model.embeddings import TextEmbeddings
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.novel_ads.neighbours import Vectors
from ramen_ray.method.novel_ads.representation import CombinedAds
from ramen_ray.method.retrieval.search import search

SPLITS = (ZERO_SHOT, "test")
TEXT, SUM, COMBINER, ONE_SHOT = "text", "sum", "combiner", "combiner one-shot"
"""Names of the rows that are compared."""

RevealedClicks = tuple[Int64s, Vectors]
"""Ads (r,) with a known click, and the embeddings (r, D) of the clicks' queries."""


@dataclass(frozen=True)
class Embedded:
    """A prepared dataset and the frozen embeddings of its texts.

    Attributes:
        data: the dataset.
        queries: embeddings of the queries, by split.
        ads: embeddings of all ads.
    """

    data: Prepared
    queries: Mapping[str, TextEmbeddings]
    ads: TextEmbeddings

    def all_ads(self) -> Vectors:
        """Return the embeddings (ads, D) float32 of all ads' texts."""
        return self.ads.take(np.arange(len(self.data.ads)))

    def measure(self, vectors: Vectors, split: str, propensity: Propensity) -> dict[str, PerQuery]:
        """Return the metrics of ad ``vectors`` (ads, D) on a split, query by query."""
        data = self.data
        queries = self.queries[split].take(np.arange(len(data.queries[split])))
        candidates = data.candidates(split)
        judgement = Judgement.from_prepared(data, split, propensity)
        found = search(queries, vectors[candidates], judgement.depth, ids=candidates)
        return judgement.measure(found)


def row_vectors(
    combined: CombinedAds, text: Vectors, revealed: RevealedClicks | None
) -> Iterable[tuple[str, Vectors]]:
    """Yield the vectors (ads, D) of all ads by row: text alone, the sum, the combiner.

    Every ad is represented as if it were new. Revealed clicks make a further row.

    Args:
        combined: the trained combiner.
        text: (ads, D) the embeddings of all ads' texts.
        revealed: clicks on novel ads, if any.
    """
    own = combined.seen.rows_of(np.arange(len(text)))
    mean = Combiner("mean", text.shape[1]).eval()
    yield TEXT, text
    yield SUM, CombinedAds(mean, combined.seen, combined.lookup).represent(text, own)
    yield COMBINER, combined.represent(text, own)
    if revealed is not None:
        yield ONE_SHOT, combined.represent(text, own, revealed)
