"""Summary statistics of a dataset directory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.dataset import Dataset
from ramen_ray.data.schemas import SPLITS


def dataset_statistics(dataset: Dataset) -> dict[str, float]:
    """Count queries, ads, clicks and edges, with the averages of RAMEN's Table 9.

    Follows "Dataset statistics summary" (Table 9) of the RAMEN paper, where a query is a document
    and an ad is a label: clicks per query are over the train queries, queries per ad over all ads,
    also those without a train click. Added are the other splits' counts and the shares of ads with
    no train click and with exactly one.

    Returns:
        ``num_<split>_queries`` and ``num_<split>_clicks``; ``num_ads``; ``clicks_per_query`` and
        ``queries_per_ad`` (train); ``share_ads_without_click`` and ``share_ads_with_one_click``
        (train); and per anchor set ``<set>_num_anchors``, ``<set>_anchors_per_query`` (train
        queries) and ``<set>_anchors_per_ad``, zero on a side without edges.
    """
    num_ads = dataset.num_rows("ads")
    statistics = {f"num_{split}_queries": dataset.num_rows(f"queries/{split}") for split in SPLITS}
    for split in SPLITS:
        statistics[f"num_{split}_clicks"] = sum(map(len, _clicked_ads(dataset, split)))
    queries_of_ad = np.zeros(num_ads, dtype=np.int64)
    for ad_ids in _clicked_ads(dataset, "train"):
        queries_of_ad += np.bincount(ad_ids, minlength=num_ads)
    num_queries = statistics["num_train_queries"]
    averages = {
        "clicks_per_query": _ratio(statistics["num_train_clicks"], num_queries),
        "queries_per_ad": _ratio(statistics["num_train_clicks"], num_ads),
        "share_ads_without_click": _ratio(int((queries_of_ad == 0).sum()), num_ads),
        "share_ads_with_one_click": _ratio(int((queries_of_ad == 1).sum()), num_ads),
    }
    for name in dataset.anchor_sets:
        averages |= {
            f"{name}_num_anchors": dataset.num_rows(f"anchors/{name}"),
            f"{name}_anchors_per_query": _ratio(_num_edges(dataset, name, "query"), num_queries),
            f"{name}_anchors_per_ad": _ratio(_num_edges(dataset, name, "ad"), num_ads),
        }
    everything = {**statistics, "num_ads": num_ads, **averages}
    return {key: float(value) for key, value in everything.items()}


def _clicked_ads(dataset: Dataset, split: str) -> Iterator[NDArray[np.int64]]:
    """Stream the ad ids of the split's clicks, without reading the texts."""
    for batch in dataset.batches(f"queries/{split}", ["ad_ids"]):
        yield batch.column("ad_ids").flatten().to_numpy(zero_copy_only=False)


def _num_edges(dataset: Dataset, anchor_set: str, side: str) -> int:
    table = f"edges/{anchor_set}/{side}"
    return dataset.num_rows(table) if dataset.has(table) else 0


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
