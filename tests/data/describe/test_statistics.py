"""The statistics of a dataset directory against plain loops, and against the data cards."""

import re

import numpy as np
import pytest
from support import ROOT, query_table, text_table

from ramen_ray.data.describe.counts import dataset_statistics
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.store.schemas import SPLITS

DATASETS = ROOT / "datasets"


def _statistics_by_loops(dataset: Dataset) -> dict[str, float]:
    clicks = {split: dataset.read(f"queries/{split}")["ad_ids"].to_pylist() for split in SPLITS}
    num_ads, num_queries = dataset.num_rows("ads"), len(clicks["train"])
    queries_of_ad = np.bincount(np.concatenate(clicks["train"]), minlength=num_ads)
    found: dict[str, float] = {"num_ads": num_ads}
    for split in SPLITS:
        found[f"num_{split}_queries"] = len(clicks[split])
        found[f"num_{split}_clicks"] = sum(len(ads) for ads in clicks[split])
    found["clicks_per_query"] = sum(len(ads) for ads in clicks["train"]) / num_queries
    found["queries_per_ad"] = queries_of_ad.mean()
    found["share_ads_without_click"] = (queries_of_ad == 0).mean()
    found["share_ads_with_one_click"] = (queries_of_ad == 1).mean()
    for name in dataset.anchor_sets:
        for side, nodes in (("query", num_queries), ("ad", num_ads)):
            anchors: dict[int, set[int]] = {node: set() for node in range(nodes)}
            for edge in dataset.read(f"edges/{name}/{side}").to_pylist():
                anchors[edge[f"{side}_id"]].add(edge["anchor_id"])
            found[f"{name}_anchors_per_{side}"] = sum(map(len, anchors.values())) / nodes
        found[f"{name}_num_anchors"] = len(dataset.read(f"anchors/{name}"))
    return found


def test_a_dataset_without_rows_has_zeros(tmp_path):
    tables = {f"queries/{split}": query_table([], []) for split in SPLITS}
    tables["ads"] = text_table("ad_id", [])
    statistics = dataset_statistics(write_dataset(tmp_path / "empty", tables, name="empty"))
    assert set(statistics.values()) == {0.0}


@pytest.mark.parametrize("name", ["foldoc", "debian", "rdocs"])
def test_shipped_statistics_are_those_of_plain_loops(name):
    dataset = Dataset(DATASETS / name)
    statistics = dataset_statistics(dataset)
    assert statistics == pytest.approx(_statistics_by_loops(dataset))
    assert {type(value) for value in statistics.values()} == {float}


@pytest.mark.parametrize("name", ["foldoc", "debian", "rdocs"])
def test_data_cards_give_the_statistics(name):
    card = (DATASETS / name / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(\w+)` \| ([\d,.]+) \|", card)
    statistics = dataset_statistics(Dataset(DATASETS / name))
    assert {key for key, _ in rows} <= set(statistics)
    assert len(rows) >= 8
    for key, value in rows:
        assert float(value.replace(",", "")) == pytest.approx(statistics[key], abs=0.005)
