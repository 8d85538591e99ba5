"""Texts embedded in tasks, as on GPUs."""

import numpy as np
from support import MAX_LENGTH

from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.orchestration import embed


def test_there_are_as_many_tasks_as_gpus_are_free(
    prepared_bag, encoder_path, tmp_path, monkeypatch
):
    table = embed.TableRows(prepared_bag.path / "tokens" / "ads", range(5), "ads")
    model = DualEncoder(build_bag(encoder_path))
    model.save(tmp_path / "model", MAX_LENGTH)
    begun = []

    def in_tasks(tasks, *_):
        begun.append(len(tasks))
        for task in tasks:
            task()

    monkeypatch.setattr(embed, "TEXTS_PER_BATCH", 1)
    monkeypatch.setattr(embed, "in_tasks", in_tasks)
    monkeypatch.setattr(DualEncoder, "to", lambda here, _: here)  # there is no GPU
    monkeypatch.setattr(embed.ray, "available_resources", lambda: {"GPU": 0.75})
    on_gpus = embed.EmbeddingResources(num_threads=1, num_gpus=0.25)
    vectors = embed.embed_tables(tmp_path / "model", [table], tmp_path / "ads.npy", on_gpus)
    np.testing.assert_allclose(vectors, model.embed_ads(prepared_bag.ads, np.arange(5)), atol=1e-6)
    assert begun == [3]
