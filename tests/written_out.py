"""What a dataset directory holds, written out with texts in place of ids."""

from itertools import repeat
from typing import Any

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, SPLITS


def plain(text: str) -> str:
    """Write a text without case and repeated spaces: texts that count as one are then the same."""
    return " ".join(text.lower().split())


def column_of(dataset: Dataset, table: str, column: str = "text") -> list[Any]:
    """Read a column in the order of the table's ids."""
    rows = dataset.read(table)
    return rows.sort_by(rows.column_names[0])[column].to_pylist()


def clicks_of(dataset: Dataset, split: str) -> dict[str, list[str]]:
    ads = column_of(dataset, "ads")
    rows = dataset.read(f"queries/{split}").to_pylist()
    return {row["text"]: [ads[ad] for ad in row["ad_ids"]] for row in rows}


def click_weights_of(dataset: Dataset, *splits: str) -> dict[tuple[str, str], float]:
    """Write out the clicks of these splits, or of all three; without weights each weighs 1."""
    ads = column_of(dataset, "ads")
    clicks = {}
    for split in splits or SPLITS:
        for row in dataset.read(f"queries/{split}").to_pylist():
            weights = row.get("weights") or repeat(1.0)
            for ad, weight in zip(row["ad_ids"], weights, strict=False):
                clicks[row["text"], ads[ad]] = weight
    return clicks


def clicked_pairs(dataset: Dataset, *splits: str) -> set[tuple[str, str]]:
    return set(click_weights_of(dataset, *splits))


def judged_of(dataset: Dataset, split: str) -> dict[tuple[str, str, str], float]:
    """Write out the grades of a split's queries and ads, by their texts and the source."""
    table = f"judged/{split}"
    if not dataset.has(table):
        return {}
    queries = column_of(dataset, f"queries/{split}")
    ads = column_of(dataset, "ads")
    rows = dataset.read(table).to_pylist()
    grades = {(queries[r["query_id"]], ads[r["ad_id"]], r["source"]): r["grade"] for r in rows}
    assert len(grades) == len(rows)
    return grades


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
