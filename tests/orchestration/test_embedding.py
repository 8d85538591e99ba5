"""Embedding by tasks and in this process: where processes die."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.orchestration import embedding
from ramen_ray.orchestration.cluster.attempts import MAX_ATTEMPTS
from ramen_ray.orchestration.cluster.resources import ClusterError
from ramen_ray.orchestration.embedding import EmbeddingResources, TableRows, embed_tables


@pytest.fixture
def model(encoder_path: Path, tmp_path: Path) -> DualEncoder:
    """A model that is also in the folder ``model``."""
    model = DualEncoder(build_bag(str(encoder_path)))
    model.save(tmp_path / "model", 16)
    return model


def test_embedding_that_ends_its_process_is_given_up(
    cluster: None, prepared_bag: Prepared, model: DualEncoder, tmp_path: Path
) -> None:
    class Deadly:
        def __len__(self) -> int:
            return embedding.FEW_TEXTS + 1

        def __getitem__(self, some: slice) -> Any:
            with (tmp_path / "begun").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)

    ads: Any = TableRows(prepared_bag.path / "tokens" / "ads", Deadly(), "queries")  # type: ignore
    folder = tmp_path / "made"
    folder.mkdir()
    message = rf"embedding of {ads.table}, texts from 0: {MAX_ATTEMPTS} processes have died"
    with pytest.raises(ClusterError, match=message):
        embed_tables(tmp_path / "model", [ads], folder / "made.npy", EmbeddingResources(1, 1))
    assert (tmp_path / "begun").read_text() == "x" * MAX_ATTEMPTS
    assert [file.name for file in folder.iterdir()] == ["made.npy"]
