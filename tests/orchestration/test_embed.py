"""Embedding by tasks and by actors, and how often the model is loaded."""

import os
from pathlib import Path

import numpy as np
import pytest
from support import NUM_CPUS

from ramen_ray.data.arrays import map_new_array
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.orchestration import embed
from ramen_ray.orchestration.embed import EmbeddingResources, TableRows, embed_tables


@pytest.fixture
def model(encoder_path: Path, tmp_path: Path) -> DualEncoder:
    """A model that is also in the folder ``model``."""
    model = DualEncoder(build_bag(str(encoder_path)))
    model.save(tmp_path / "model", 16)
    return model


@pytest.mark.slow
def test_actors_embed_as_tasks_do_and_load_the_model_once_each(
    cluster, prepared_bag, model, tmp_path, monkeypatch
):
    class Counting(embed._Work):
        def load(self) -> DualEncoder:
            with (tmp_path / "loaded").open("a") as file:
                file.write(f"{os.getpid()}\n")
            return super().load()

    monkeypatch.setattr(embed, "TEXTS_PER_BATCH", 4)
    monkeypatch.setattr(embed, "FEW_TEXTS", 0)
    rows = np.arange(40)[::-1]
    tables = [TableRows(prepared_bag.path / "tokens" / "ads", rows, "queries")]
    resources = EmbeddingResources(1, 1)
    by_tasks = embed_tables(tmp_path / "model", tables, tmp_path / "tasks.npy", resources)
    file = tmp_path / "actors.npy"
    map_new_array(file, np.float32, by_tasks.shape)
    # with a GPU these are called by embed_tables
    work = Counting(tmp_path / "model", file, resources, None, tmp_path)
    embed._in_actors(embed._batches(tables), work)
    assert np.load(file) == pytest.approx(model.embed_texts(prepared_bag.ads, rows), abs=1e-6)
    assert by_tasks.tolist() == np.load(file).tolist()
    loaded = (tmp_path / "loaded").read_text().split()
    assert 1 <= len(loaded) == len(set(loaded)) <= NUM_CPUS
    assert not list(tmp_path.glob(".*"))
