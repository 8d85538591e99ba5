"""Prepared data are made once, also by two at once, and again if a file is damaged."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.orchestration.preparation import pipeline
from ramen_ray.orchestration.preparation.pipeline import prepare


def _contents(prepared: Prepared) -> dict[str, bytes]:
    files = [file for file in prepared.path.rglob("*") if file.is_file()]
    return {str(file.relative_to(prepared.path)): file.read_bytes() for file in files}


def test_prepared_data_are_made_once_and_again_if_damaged(
    cluster: None,
    dataset_path: Path,
    encoder_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    content = _contents(first)
    (first.path / "tokens" / "ads" / "offsets.npy").write_bytes(b"")
    caplog.clear()
    again = prepare(Dataset(dataset_path), tmp_path, tokenizer)
    assert "offsets.npy has 0 bytes instead of" in caplog.text
    assert "the dataset is prepared again" in caplog.text
    assert _contents(again) == content
    assert len(made) == 2
