"""Retrievers are judged on the dataset that they were trained on, as it was then."""

import shutil
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
from stores import Store

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.method.metrics import held_out
from ramen_ray.orchestration.serve.judging import open_test_queries
from ramen_ray.tracking.registry import Registry, uri_of


def test_queries_that_change_while_they_are_read_are_refused(
    dataset_path: Path,
    prepared_bag: Prepared,
    encoder_path: Path,
    output: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = Path(shutil.copytree(dataset_path, tmp_path / "copied"))
    store = Store(f"sqlite:///{output}/mlflow.db", output, prepared_bag, encoder_path)
    registry = Registry(store.uri)
    _, model_id = registry.find_logged(store.run(0.25, copied), None)
    logged = registry.look_up(uri_of(model_id))
    assert len(open_test_queries(registry, logged).texts) == 12
    count = held_out.count_clicks

    def change_first(dataset: Dataset, split: str) -> Any:
        pq.write_table(dataset.read("queries/train").slice(1), copied / "queries/train.parquet")
        return count(dataset, split)

    monkeypatch.setattr(held_out, "count_clicks", change_first)
    with pytest.raises(DatasetError, match=f"copied has changed since {logged.uri} was trained on"):
        open_test_queries(registry, logged)
    mlflow.set_tracking_uri(None)
