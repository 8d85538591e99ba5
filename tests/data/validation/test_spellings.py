"""Texts that people cannot see, or cannot tell apart."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
from support import text_table

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.validation.spellings import ads_in_several_spellings, invisible_texts


def _with_ads(dataset_path: Path, folder: Path, texts: list[str]) -> Dataset:
    shutil.copytree(dataset_path, folder)
    pq.write_table(text_table("ad_id", texts), folder / "ads.parquet")
    return Dataset(folder)


def test_texts_without_a_visible_character_are_found(dataset_path: Path, tmp_path: Path) -> None:
    texts = ["a", "\u200b", " \u200d\ufeff ", "\u200bb", "\u00ad\u2060", " "]
    (finding,) = invisible_texts(_with_ads(dataset_path, tmp_path / "set", texts), "ads")
    assert (finding.severity, finding.row) == ("warning", 1)
    assert "text without a visible character (3 of 6" in finding.message
    assert "(row 2)" in finding.message
    assert "(row 4)" in finding.message


def test_ads_that_differ_in_case_are_found_and_equal_ones_are_not(
    dataset_path: Path, tmp_path: Path
) -> None:
    texts = ["Red shoes", "boots", "red shoes", "boots", "RED  SHOES", "red shoes", "Boots\u00a0"]
    dataset = _with_ads(dataset_path, tmp_path / "set", texts)
    (finding,) = ads_in_several_spellings(dataset, len(texts))
    assert finding.row == 2
    assert "(3 of 7" in finding.message
    other = _with_ads(dataset_path, tmp_path / "other", ["a", "b", "a"])
    assert ads_in_several_spellings(other, 3) == []
