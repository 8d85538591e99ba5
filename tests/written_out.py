"""What a dataset directory holds, written out with texts in place of ids."""

from itertools import repeat
from typing import Any

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, SPLITS


def plain(text: str) -> str:
    """Write a text without case and repeated spaces: texts that count as one are then the same."""
    return " ".join(text.lower().split())


def column_of(dataset: Dataset, table: str, column: str = "text") -> list[Any]:
    return dataset.read(table)[column].to_pylist()


def clicks_of(dataset: Dataset, split: str) -> dict[str, list[str]]:
    ads = column_of(dataset, "ads")
    rows = dataset.read(f"queries/{split}").to_pylist()
    return {row["text"]: [ads[ad] for ad in row["ad_ids"]] for row in rows}


def clicked_pairs(dataset: Dataset, *splits: str) -> set[tuple[str, str]]:
    """Write out the clicks of these splits, or of all three."""
    ads = column_of(dataset, "ads")
    tables = (dataset.read(f"queries/{split}").to_pylist() for split in splits or SPLITS)
    return {(row["text"], ads[ad]) for rows in tables for row in rows for ad in row["ad_ids"]}


def weights_of(dataset: Dataset, table: str, left: str, right: str) -> dict[tuple[str, str], float]:
    """Write out a table of id pairs with the texts of the tables ``left`` and ``right``.

    Each has its weight, which is 1 in a table without weights.
    """
    left_texts = column_of(dataset, left)
    right_texts = column_of(dataset, right)
    from_ids, to_ids, *weights = dataset.read(table).to_pydict().values()
    pairs = ((left_texts[a], right_texts[b]) for a, b in zip(from_ids, to_ids, strict=True))
    return dict(zip(pairs, *weights or [repeat(1.0)], strict=False))


def pairs_of(dataset: Dataset, table: str, left: str, right: str) -> set[tuple[str, str]]:
    return set(weights_of(dataset, table, left, right))


def edge_weights_of(dataset: Dataset, name: str, side: str) -> dict[tuple[str, str], float]:
    held_out = {name: f"queries/{split}" for split, name in HELD_OUT_SIDES.items()}
    nodes = {"query": "queries/train", "ad": "ads", **held_out}[side]
    return weights_of(dataset, f"edges/{name}/{side}", nodes, f"anchors/{name}")


def edges_of(dataset: Dataset, name: str, side: str) -> set[tuple[str, str]]:
    return set(edge_weights_of(dataset, name, side))
