"""Summary statistics of a dataset directory."""

from collections.abc import Mapping

from ramen_ray.data.describe.degrees import ClickCounts, count_clicks
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import SPLITS


def dataset_statistics(
    dataset: Dataset, clicks: Mapping[str, ClickCounts] | None = None
) -> dict[str, float]:
    """Count queries, ads, clicks and edges, with the averages of RAMEN's Table 9.

    Follows "Dataset statistics summary" (Table 9) of the RAMEN paper, where a query is a document
    and an ad is a label: clicks per query are over the train queries, queries per ad over all ads,
    including those without a train click. The counts of the other splits are added, and the shares
    of ads with no train click and with exactly one.

    Args:
        dataset: the dataset directory.
        clicks: those of its splits, if they have been counted.

    Returns:
        ``num_<split>_queries`` and ``num_<split>_clicks``; ``num_ads``; ``clicks_per_query`` and
        ``queries_per_ad`` (train); ``share_ads_without_click`` and ``share_ads_with_one_click``
        (train); and per anchor set ``<set>_num_anchors``, ``<set>_anchors_per_query`` (train
        queries) and ``<set>_anchors_per_ad``, zero on a side without edges.
    """
    num_ads = dataset.num_rows("ads")
    statistics = {f"num_{split}_queries": dataset.num_rows(f"queries/{split}") for split in SPLITS}
    if clicks is None:
        clicks = {split: count_clicks(dataset, split) for split in SPLITS}
    clicks_per_ad = {split: clicks[split].per_ad for split in SPLITS}
    statistics |= {f"num_{split}_clicks": int(clicks_per_ad[split].sum()) for split in SPLITS}
    num_queries = statistics["num_train_queries"]
    averages = {
        "clicks_per_query": _ratio(statistics["num_train_clicks"], num_queries),
        "queries_per_ad": _ratio(statistics["num_train_clicks"], num_ads),
        "share_ads_without_click": _ratio(int((clicks_per_ad["train"] == 0).sum()), num_ads),
        "share_ads_with_one_click": _ratio(int((clicks_per_ad["train"] == 1).sum()), num_ads),
    }
    for name in dataset.anchor_sets:
        averages |= {
            f"{name}_num_anchors": dataset.num_rows(f"anchors/{name}"),
            f"{name}_anchors_per_query": _ratio(_num_edges(dataset, name, "query"), num_queries),
            f"{name}_anchors_per_ad": _ratio(_num_edges(dataset, name, "ad"), num_ads),
        }
    everything = {**statistics, "num_ads": num_ads, **averages}
    return {key: float(value) for key, value in everything.items()}


def _num_edges(dataset: Dataset, anchor_set: str, side: str) -> int:
    table = f"edges/{anchor_set}/{side}"
    return dataset.num_rows(table) if dataset.has(table) else 0


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
