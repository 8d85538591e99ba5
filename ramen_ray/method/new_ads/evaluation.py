"""Evaluation of ad vectors on the splits of a dataset with novel ads; queries are unchanged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.method.metrics.ranking import PerQuery, ratios
from ramen_ray.method.model.dual_encoder import TextEmbeddings
from ramen_ray.method.new_ads.neighbours import Vectors
from ramen_ray.method.new_ads.representation import CombinedAds, Combiner
from ramen_ray.method.retrieval.search import TopK, search

SPLITS = (ZERO_SHOT, "test")
TEXT = "text"
SUM = "sum"
COMBINER = "combiner"
"""Names of the rows that are compared."""
COMPARED = ("P@1", "P@5", "N@5", "R@10", "R@100")  # the metrics whose differences get intervals


@dataclass(frozen=True)
class Evaluation:
    """How the rows compare."""

    metrics: Mapping[str, Mapping[str, Mapping[str, float]]]  # by row, split and name
    # how much a row exceeds text alone, with intervals; in the same order
    differences: Mapping[str, Mapping[str, Mapping[str, Difference]]]


@dataclass(frozen=True)
class Embedded:
    """A prepared dataset and the frozen embeddings of its texts."""

    data: Prepared  # the dataset
    queries: Mapping[str, TextEmbeddings]  # embeddings of the queries, by split
    ads: TextEmbeddings  # embeddings of all ads; rows of the same array as those of the queries

    def all_ads(self) -> Vectors:
        """Return the embeddings (ads, D) float32 of all ads' texts."""
        return self.ads.take(np.arange(len(self.data.ads)))

    def search(self, vectors: Vectors, split: str, depth: int) -> TopK:
        """Search ad ``vectors`` (ads, D) for the queries of a split."""
        queries = self.queries[split].take(np.arange(len(self.data.queries[split])))
        candidates = self.data.candidates(split)
        return search(queries, vectors[candidates], depth, ids=candidates)

    def measure(self, vectors: Vectors, split: str, propensity: Propensity) -> dict[str, PerQuery]:
        """Return the metrics of ad ``vectors`` (ads, D) on a split, query by query."""
        ground_truth = GroundTruth.from_prepared(self.data, split, propensity)
        return ground_truth.measure(self.search(vectors, split, ground_truth.depth))


def row_vectors(combined: CombinedAds, text: Vectors) -> Iterable[tuple[str, Vectors]]:
    """Yield the vectors (ads, D) of all ads by row: text alone, the sum, the combiner.

    Every ad is represented as if it were new, from the embedding of its ``text`` (ads, D).
    """
    rows = combined.seen.rows_of(np.arange(len(text)))
    mean = Combiner("mean", text.shape[1]).eval()
    yield TEXT, text
    yield SUM, CombinedAds(mean, combined.seen, combined.lookup).represent(text, rows)
    yield COMBINER, combined.represent(text, rows)


def compare_rows(embedded: Embedded, combined: CombinedAds, propensity: Propensity) -> Evaluation:
    """Compare text alone, the sum and the combiner on the splits with novel ads."""
    metrics = {}
    differences = {}
    compared = {}
    for row, vectors in row_vectors(combined, embedded.all_ads()):
        by_split = {split: embedded.measure(vectors, split, propensity) for split in SPLITS}
        metrics[row] = {split: ratios(values) for split, values in by_split.items()}
        compared[row] = {
            split: {name: values[name] for name in COMPARED} for split, values in by_split.items()
        }
        if row != TEXT:
            differences[row] = {
                split: paired_differences(compared[row][split], compared[TEXT][split])
                for split in SPLITS
            }
    return Evaluation(metrics, differences)
