"""The statistics of a dataset directory against the data cards; of loops, in test_describe."""

import re

import pytest
from support import ROOT

from ramen_ray.data.describe.counts import dataset_statistics
from ramen_ray.data.store.dataset import Dataset

DATASETS = ROOT / "datasets"


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
