"""Samples of a dataset against plain loops over its texts."""

import pytest
from support import errors_in
from written_out import clicked_pairs, column_of, edges_of

from ramen_ray.data.splits.sample import sample_dataset
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.presets import bag


@pytest.fixture(scope="module")
def whole():
    return Dataset(bag("foldoc").dataset)


def test_what_is_kept_keeps_its_clicks_edges_and_filters(whole, tmp_path):
    sample = sample_dataset(whole.path, tmp_path / "sample", 800)
    assert errors_in(sample) == []
    assert sample.num_rows("queries/train") == 800
    ads = set(column_of(sample, "ads"))
    queries = {split: set(column_of(sample, f"queries/{split}")) for split in SPLITS}
    for split in SPLITS:
        expected = {pair for pair in clicked_pairs(whole, split) if pair[0] in queries[split]}
        assert clicked_pairs(sample, split) == expected
        assert {ad for _, ad in expected} <= ads
    assert sample.anchor_sets == whole.anchor_sets
    for anchor_set in whole.anchor_sets:
        for side, nodes in (("query", queries["train"]), ("ad", ads)):
            edges = edges_of(whole, anchor_set, side)
            assert edges_of(sample, anchor_set, side) == {one for one in edges if one[0] in nodes}
    own = sample.read("filters/test").to_pylist()
    texts = {table: column_of(sample, table) for table in ("queries/test", "ads")}
    assert own
    assert all(texts["queries/test"][o["query_id"]] == texts["ads"][o["ad_id"]] for o in own)
