"""Texts embedded in actors, as on GPUs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
from support import MAX_LENGTH, PATIENCE_S

from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.orchestration import embed
from ramen_ray.orchestration.cluster import resources


def test_any_number_of_actors_may_load_the_model_at_once(
    prepared_bag, encoder_path, tmp_path, monkeypatch
):
    number = resources.MAX_ATTEMPTS + 1
    table = embed.TableRows(prepared_bag.path / "tokens" / "ads", range(number), "ads")
    DualEncoder(build_bag(str(encoder_path))).save(tmp_path / "model", MAX_LENGTH)
    model = load_model(tmp_path / "model")
    all_load = threading.Barrier(number, timeout=PATIENCE_S)

    def load(*_: Any, **__: Any) -> DualEncoder:
        if threading.current_thread() is not threading.main_thread():
            all_load.wait()
        return model

    def in_threads(actor: Any, fn_constructor_args: Any, **_: Any) -> Any:
        with ThreadPoolExecutor(number) as threads:
            rows = [{"id": batch} for batch in range(number)]
            list(threads.map(lambda row: actor(*fn_constructor_args)(row), rows))
        return SimpleNamespace(materialize=lambda: None)

    monkeypatch.setattr(embed, "TEXTS_PER_BATCH", 1)
    monkeypatch.setattr(embed, "load_model", load)
    monkeypatch.setattr(embed.ray, "get_gpu_ids", list)
    monkeypatch.setattr(embed.ray.data, "range", lambda *_, **__: SimpleNamespace(map=in_threads))
    on_gpus = embed.EmbeddingResources(num_threads=1, num_gpus=0.25)
    vectors = embed.embed_tables(tmp_path / "model", [table], tmp_path / "ads.npy", on_gpus)
    expected = model.embed_ads(prepared_bag.ads, np.arange(number))
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
