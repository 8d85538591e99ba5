"""The test queries of a dataset, on which retrievers are evaluated."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.describe.counts import count_clicks
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.judgement import KS, Judgement, Propensity
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.method.retrieval.search import TopK, drop_filtered, most_filters


class HeldOutQueries:
    """Test queries, and the metrics of the ads that a retriever finds for them."""

    def __init__(self, dataset: Dataset, propensity: Propensity) -> None:
        """Read the split; ``propensity`` has the constants of PSP and PSN."""
        self._queries = dataset.read("queries/test").sort_by("query_id")
        self._filters = _read_filters(dataset)
        train = count_clicks(dataset, "train")
        clicked = self._queries["ad_ids"].combine_chunks()
        rows = pc.list_parent_indices(clicked).to_numpy()
        truth = Csr.from_pairs(rows, clicked.flatten().to_numpy(), len(clicked))
        num_queries = int((train.per_query > 0).sum())
        self._judgement = Judgement.from_clicks(truth, train.per_ad, num_queries, propensity)

    @property
    def texts(self) -> list[str]:
        """The queries, in the order of their ids."""
        return list(self._queries["text"].to_pylist())

    @property
    def num_ads(self) -> int:
        """How many ads the dataset has."""
        return len(self._judgement.inverse)

    @property
    def num_searched(self) -> int:
        """How many of the dataset's ads the metrics need for each query, if it has that many."""
        return max(KS) + most_filters(self._filters)

    def measure(self, topk: TopK) -> dict[str, PerQuery]:
        """Return the metrics (:data:`~ramen_ray.method.metrics.judgement.METRICS`) query by query.

        Filter pairs are dropped, as in training's evaluation.

        Args:
            topk: ad ids (queries, ``num_searched`` or all ads), best first, -1 after
                the last, and their scores, in the order of ``texts``.
        """
        ads, _ = drop_filtered(topk, self._filters, max(KS))
        return self._judgement.by_query(ads)


def _read_filters(dataset: Dataset) -> NDArray[Any]:
    if not dataset.has("filters/test"):
        return np.empty((0, 2), dtype=np.int64)
    pairs = dataset.read("filters/test")
    return np.stack([pairs[name].to_numpy() for name in ("query_id", "ad_id")], axis=1)
