"""Random data: datasets, to compare what is made of them with plain loops, and JSON."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from support import node_edges, query_table, text_table

from ramen_ray.data.store.dataset import Dataset, write_dataset

SPLIT_SIZES = {"train": 14, "validation": 5, "test": 8}
NUM_ANCHORS = 5
EDGE_WEIGHTS = (0.5, 1.0, 3.0)  # sums of their products are exact
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def random_dataset(
    path: Path, seed: int, num_ads: int = 8, last_ad: str | None = None, weighted: bool = True
) -> Dataset:
    """Write a dataset with users' ids, filters, odd texts, four graphs, and rows in any order.

    Every other train query and some anchors have an ad's text, in another spelling; some train
    queries have no clicks. Clicks are ``weighted`` or not.
    """
    draw = np.random.default_rng(seed)

    def lists(count, below, low):
        sizes = draw.integers(low, min(below, 4) + 1, count)
        return [draw.choice(below, size, replace=False).tolist() for size in sizes]

    ads = [*(f"ad {a}" for a in range(num_ads - 1)), last_ad or f"ad {num_ads - 1}"]
    own = _with_source_ids(text_table("ad_id", ads))
    tables = {"ads": own.append_column("filter_kind", [[*map(kind_of, range(num_ads))]])}
    for split, count in SPLIT_SIZES.items():
        clicks = lists(count, num_ads, 1)
        if split == "train":
            clicks[2:4] = [], []
        texts = [_query_text(split, number) for number in range(count)]
        rows = _with_source_ids(query_table(texts, clicks))
        if weighted:
            weights = [draw.random(len(ads)).tolist() for ads in clicks]
            rows = rows.append_column("weights", pa.array(weights, pa.list_(pa.float32())))
        tables[f"queries/{split}"] = rows
        if split != "train":
            pairs = node_edges("query_id", lists(count, num_ads, 0)).select([0, 1])
            tables[f"filters/{split}"] = pairs.rename_columns(["query_id", "ad_id"])
    graphs = {"both": "query ad", "left": "query", "right": "ad", "more": "query ad"}
    for name, sides in graphs.items():
        texts = [f"aD {a}" if a < 2 else f"{name} {a}" for a in range(NUM_ANCHORS)]
        tables[f"anchors/{name}"] = _with_source_ids(text_table("anchor_id", texts))
        for side in sides.split():
            count = SPLIT_SIZES["train"] if side == "query" else num_ads
            linked = [[0], *lists(count - 1, NUM_ANCHORS, 0)]
            weights = [draw.choice(EDGE_WEIGHTS, len(anchors)).tolist() for anchors in linked]
            tables[f"edges/{name}/{side}"] = node_edges(f"{side}_id", linked, weights)
    shuffled = {name: rows.take(draw.permutation(len(rows))) for name, rows in tables.items()}
    return write_dataset(path, shuffled, name="random", source="a die", licence="free")


def kind_of(ad: int) -> str:
    """Return what an ad has in its column ``filter_kind``."""
    return f"kind {ad % 3}"


def rows_in(dataset: Dataset, table: str) -> list[dict[str, Any]]:
    return dataset.read(table).to_pylist() if dataset.has(table) else []


def _query_text(split, number):
    if split == "validation":
        return f' "{split} {number}"\t#1:2\u2028漢é '
    return f"Ad  {number}" if split == "train" and number % 2 == 0 else f"{split} {number}"


def _with_source_ids(rows):
    own = [f"user's {text}" for text in rows["text"].to_pylist()]
    return rows.append_column("source_id", pa.array(own))
