"""Prepared data are made once, again if a file is damaged, and never of two versions."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import contents_of

from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.orchestration.prepare import pipeline
from ramen_ray.orchestration.prepare.pipeline import prepare


def test_prepared_data_are_made_once_and_again_if_damaged(
    cluster, dataset_path, encoder_path, tmp_path, monkeypatch, caplog
):
    made: list[Path] = []

    def counted(make: Callable[..., None]) -> Callable[..., None]:
        return lambda folder, *rest: (made.append(folder), make(folder, *rest))[1]

    monkeypatch.setattr(pipeline, "_prepare_into", counted(pipeline._prepare_into))
    tokenizer = text_tokenizer(load_tokenizer(str(encoder_path)), 16, True)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(prepare, Dataset(dataset_path), tmp_path, tokenizer) for _ in "ab"]
    first, second = (future.result() for future in futures)
    assert first == second
    assert len(made) == 1
    content = contents_of(first.path)
    (first.path / "tokens" / "ads" / "offsets.npy").write_bytes(b"")
    caplog.clear()
    again = prepare(Dataset(dataset_path), tmp_path, tokenizer)
    assert "offsets.npy has changed since it was written" in caplog.text
    assert contents_of(again.path) == content
    assert len(made) == 2


def test_a_dataset_that_changes_while_it_is_prepared_leaves_nothing(
    cluster, dataset_path, encoder_path, tmp_path, monkeypatch
):
    folder = Path(shutil.copytree(dataset_path, tmp_path / "handmade"))
    cache, ads = tmp_path / "cache", folder / "ads.parquet"
    before, inspect = ads.read_bytes(), pipeline.inspect_structure

    def change_after(dataset: Dataset) -> Any:
        found = inspect(dataset)
        ads.unlink()
        other = write_dataset(tmp_path / "other", {"ads": dataset_rows[::-1]}, name="other")
        shutil.copy(other.path / "ads.parquet", ads)
        return found

    dataset_rows = Dataset(folder).read("ads")
    tokenizer = text_tokenizer(load_tokenizer(str(encoder_path)), 16, True)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "inspect_structure", change_after)
        with pytest.raises(DatasetError, match="has changed while it was read; run the same comm"):
            prepare(Dataset(folder), cache, tokenizer)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    ads.write_bytes(before)
    again = prepare(Dataset(folder), cache, tokenizer)
    assert len(again.ads) == len(dataset_rows)
