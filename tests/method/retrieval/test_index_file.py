"""Index files made in parts, against what faiss writes of a whole index in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.method.retrieval.index import (
    FEWEST_IVF_PQ_ADS,
    extended_index_file,
    index_file,
    new_index,
)

NUM_ADS, WIDTH, BYTES_PER_AD = FEWEST_IVF_PQ_ADS, 8, 4 + 8
MakeIndex = Callable[[], Any]


def _ads() -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(NUM_ADS, WIDTH)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module", params=["ivf_pq", "flat"])
def empty(request: pytest.FixtureRequest) -> MakeIndex:
    """Makes trained indexes without ads."""
    index = new_index(request.param, WIDTH, NUM_ADS)
    if not index.is_trained:
        index.train(_ads())
    serialized = faiss.serialize_index(index)
    return lambda: faiss.deserialize_index(serialized)


def _whole(index: Any, blocks: list[np.ndarray]) -> bytes:
    for block in blocks:
        index.add(block)
    return bytes(faiss.serialize_index(index))


@given(st.sets(st.integers(1, NUM_ADS - 1), max_size=6), st.integers(1, NUM_ADS))
def test_an_index_made_in_parts_is_the_whole_one_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, empty: MakeIndex, cuts: set[int], room: int
) -> None:
    file = tmp_path_factory.mktemp("index") / "index.faiss"
    blocks = np.split(_ads(), sorted(cuts))
    with index_file(file, empty(), 2e-9 * room * BYTES_PER_AD) as add:
        for block in blocks:
            add(block)
    assert file.read_bytes() == _whole(empty(), blocks)
    assert [*file.parent.iterdir()] == [file]


def test_ads_added_to_a_file_are_those_added_to_an_index(tmp_path: Path, empty: MakeIndex) -> None:
    file, blocks = tmp_path / "index.faiss", np.split(_ads(), [7000, 8000, 8001])
    file.write_bytes(_whole(empty(), blocks[:1]))
    with extended_index_file(file, 2e-9 * 500 * BYTES_PER_AD) as add:
        for block in blocks[1:]:
            add(block)
    assert file.read_bytes() == _whole(empty(), blocks)


def test_memory_holds_a_part_of_an_index_in_cells(tmp_path: Path) -> None:
    ads, index = _ads(), new_index("ivf_pq", WIDTH, NUM_ADS)
    index.train(ads)
    in_memory = []
    with index_file(tmp_path / "index.faiss", index, 2e-9 * 1001 * BYTES_PER_AD) as add:
        for block in np.split(ads, 20):
            add(block)
            in_memory.append(index.invlists.compute_ntotal())
    assert max(in_memory) == 1000
    assert faiss.read_index(str(tmp_path / "index.faiss")).ntotal == NUM_ADS


def test_an_error_leaves_the_file_as_it_was(tmp_path: Path, empty: MakeIndex) -> None:
    file = tmp_path / "index.faiss"
    file.write_bytes(before := _whole(empty(), [_ads()]))
    with pytest.raises(KeyError), extended_index_file(file, 1e-6) as add:
        add(_ads())
        raise KeyError
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]
