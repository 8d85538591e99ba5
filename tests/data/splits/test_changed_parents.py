"""A dataset made from another is of one version of it, the one whose fingerprint it carries."""

import shutil

import pytest

from ramen_ray.data.splits import kept
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.splits.sample import sample_dataset
from ramen_ray.data.store.dataset import DatasetError

MAKERS = [
    lambda parent, output: make_novel_split(parent, output, NovelSettings(0.3)),
    lambda parent, output: sample_dataset(parent, output, 20),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_parent_that_changes_meanwhile_is_refused(make, copied, tmp_path, monkeypatch):
    check = kept.check

    def change_after(dataset):
        check(dataset)
        shutil.copy(copied / "queries/validation.parquet", copied / "queries/test.parquet")

    monkeypatch.setattr(kept, "check", change_after)
    with pytest.raises(DatasetError, match="mine"):
        make(copied, tmp_path / "made")
    assert not (tmp_path / "made").exists()
