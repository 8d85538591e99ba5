"""The statistics of a dataset directory against the data cards; of loops, in test_describe."""

import re

import pytest
from support import ROOT, query_table, text_table

from ramen_ray.data.describe.counts import dataset_statistics
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.store.schemas import SPLITS

DATASETS = ROOT / "datasets"


def test_a_dataset_without_rows_has_zeros(tmp_path):
    tables = {f"queries/{split}": query_table([], []) for split in SPLITS}
    tables["ads"] = text_table("ad_id", [])
    statistics = dataset_statistics(write_dataset(tmp_path / "empty", tables, name="empty"))
    assert set(statistics.values()) == {0.0}


@pytest.mark.parametrize("name", ["foldoc", "debian", "rdocs"])
def test_data_cards_give_the_statistics(name):
    card = (DATASETS / name / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(\w+)` \| ([\d,.]+) \|", card)
    statistics = dataset_statistics(Dataset(DATASETS / name))
    assert {type(value) for value in statistics.values()} == {float}
    assert {key for key, _ in rows} <= set(statistics)
    assert len(rows) >= 8
    for key, value in rows:
        assert float(value.replace(",", "")) == pytest.approx(statistics[key], abs=0.005)
