"""Rows that repeat earlier ones, against a plain loop, however few keys fit into memory at once."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support import query_table, text_table

from ramen_ray.data.findings import Tally
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.validation import batches, repeats

NUM_NODES, NUM_ANCHORS = 40, 25


def _dataset(path: Path, pairs: np.ndarray) -> Dataset:
    """Train queries with the edges ``pairs`` (edges, 2)."""
    words = [f"word{number}" for number in range(NUM_NODES)]
    tables = {
        "ads": text_table("ad_id", words),
        "anchors/links": text_table("anchor_id", words[:NUM_ANCHORS]),
        "edges/links/query": pa.table(
            {"query_id": pairs[:, 0], "anchor_id": pairs[:, 1], "weight": np.ones(len(pairs))}
        ),
    }
    for split in ("train", "validation", "test"):
        queries = [f"{split} {word}" for word in words]
        tables[f"queries/{split}"] = query_table(queries, [[n] for n in range(NUM_NODES)])
    return write_dataset(path, tables, name="repeats")


def _num_repeats(dataset: Dataset) -> int:
    tally = Tally("error", "repeats", "leave one", "anchor_id")
    keys = partial(repeats.pair_keys, limits=(NUM_NODES, NUM_ANCHORS))
    columns = ["query_id", "anchor_id"]
    repeats.tally_repeats(dataset, "edges/links/query", columns, keys, tally)
    return tally.count


@pytest.mark.parametrize("keys_at_once", [1, 7, 100, 1 << 24])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_repeated_edges_are_counted_in_any_number_of_shares(
    keys_at_once: int, is_sorted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "KEYS_AT_ONCE", keys_at_once)
    monkeypatch.setattr(batches, "ROWS_PER_BATCH", 16)
    draw = np.random.default_rng(0)
    pairs = np.stack([draw.integers(0, NUM_NODES, 150), draw.integers(0, NUM_ANCHORS, 150)], axis=1)
    if is_sorted:
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    counts = Counter(map(tuple, pairs.tolist()))
    expected = sum(count - 1 for count in counts.values())
    assert expected > 5
    assert _num_repeats(_dataset(tmp_path / "repeats", pairs)) == expected


@pytest.mark.parametrize("at", [15, 16, 31])
def test_a_repeat_at_the_edge_of_a_batch_is_found(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS_PER_BATCH", 16)
    pairs = np.stack([np.arange(NUM_NODES), np.arange(NUM_NODES) % NUM_ANCHORS], axis=1)
    assert _num_repeats(_dataset(tmp_path / "none", pairs)) == 0
    pairs = np.insert(pairs, at, pairs[at], axis=0)
    assert _num_repeats(_dataset(tmp_path / "one", pairs)) == 1
