"""What an actor that holds a shard does with a large block."""

import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support import best_by_a_sort

from ramen_ray.method.retrieval.search import build_index
from ramen_ray.orchestration import sharded_search as searching
from ramen_ray.orchestration.sharded_search import SearchShard

K, NUM_QUERIES = 60, 8_000


@dataclass(frozen=True)
class Ads:
    """A shard in memory, whose first row is ``first``."""

    embeddings: np.ndarray
    first: int

    @property
    def num_bytes(self) -> int:
        return int(self.embeddings.nbytes)

    def open(self) -> tuple[Any, int]:
        return build_index(self.embeddings), self.first


def _whole_numbers(num_rows: int) -> np.ndarray:
    """Rows of whole numbers, so that sums are exact."""
    return np.random.default_rng(num_rows).integers(-999, 999, (num_rows, 12)).astype(np.float32)


@pytest.mark.parametrize("answers_at_once", [7 * K, 1024 * K + 5])
def test_a_block_of_many_answers_needs_little_more_memory_than_these(
    answers_at_once, tmp_path, monkeypatch
):
    queries, ads = _whole_numbers(NUM_QUERIES), _whole_numbers(400)
    monkeypatch.setattr(searching, "ANSWERS_AT_ONCE", answers_at_once)
    block = {"name": "queries", "queries": queries}
    for first in (200, 0):
        actor = SearchShard(Ads(ads[first : first + 200], first), K, 1, tmp_path)
        tracemalloc.start()
        block = actor(block)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2 * (block["ads"].nbytes + block["scores"].nbytes)
    expected_ads, expected_scores = best_by_a_sort(queries, ads, K)
    assert np.array_equal(block["ads"], expected_ads)
    assert np.array_equal(block["scores"], expected_scores)
