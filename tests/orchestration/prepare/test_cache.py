"""Prepared data are made once, again if a file is damaged, and never of two versions."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import contents_of

from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.orchestration.prepare import pipeline
from ramen_ray.orchestration.prepare.pipeline import prepare


def test_prepared_data_are_made_once_and_again_if_damaged(
    cluster, copied, encoder_path, tmp_path, monkeypatch, caplog
):
    """What is doubtful in the dataset is said once, also where it was prepared before."""
    made = []
    cache = tmp_path / "cache"
    monkeypatch.setattr(pipeline, "MAX_WARNINGS_SHOWN", 4)

    def told():
        warnings = {record.message for record in caplog.records if record.levelname == "WARNING"}
        return {line for line in warnings if str(tmp_path / "m") in line}

    def counted(make):
        return lambda folder, *rest: (made.append(folder), make(folder, *rest))[1]

    monkeypatch.setattr(pipeline, "_prepare_into", counted(pipeline._prepare_into))
    tokenizer = text_tokenizer(load_tokenizer(encoder_path), 16, True)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(prepare, Dataset(copied), cache, tokenizer) for _ in "ab"]
    first, second = (future.result() for future in futures)
    assert first == second
    assert len(made) == 1
    first_told = told()
    assert f"and 1 more: python jobs/validate.py {copied}" in first_told
    assert sum(line.startswith(f"warning: {copied}/") for line in first_told) == 5, "one of tokens"
    content = contents_of(first.path)
    (first.path / "tokens" / "ads" / "offsets.npy").write_bytes(b"")
    caplog.clear()
    again = prepare(Dataset(copied), cache, tokenizer)
    assert "offsets.npy" in caplog.text
    assert not told()
    assert contents_of(again.path) == content
    moved = copied.rename(tmp_path / "moved")
    prepare(Dataset(moved), cache, tokenizer)
    assert told() == {line.replace(str(copied), str(moved)) for line in first_told}
    assert len(made) == 2


def test_a_dataset_that_changes_while_it_is_prepared_leaves_nothing(
    cluster, dataset_path, encoder_path, tmp_path, monkeypatch
):
    folder = Path(shutil.copytree(dataset_path, tmp_path / "handmade"))
    cache = tmp_path / "cache"
    ads = folder / "ads.parquet"
    before = ads.read_bytes()
    inspect = pipeline.inspect_structure

    def change_after(dataset):
        found = inspect(dataset)
        ads.unlink()
        other = write_dataset(tmp_path / "other", {"ads": dataset_rows[::-1]}, name="other")
        shutil.copy(other.path / "ads.parquet", ads)
        return found

    dataset_rows = Dataset(folder).read("ads")
    tokenizer = text_tokenizer(load_tokenizer(encoder_path), 16, True)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "inspect_structure", change_after)
        with pytest.raises(DatasetError, match="handmade"):
            prepare(Dataset(folder), cache, tokenizer)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    ads.write_bytes(before)
    again = prepare(Dataset(folder), cache, tokenizer)
    assert len(again.ads) == len(dataset_rows)
