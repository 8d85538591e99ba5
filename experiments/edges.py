"""Edges of several anchor sets, whose anchors are numbered one set after the other."""

from collections.abc import Sequence

from ramen_ray.data.engine import name_literal
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import schema_of


def edges_of_sets(parent: Dataset, anchor_sets: Sequence[str], side: str) -> str:
    """Return SQL of a side's ``node``, ``anchor``, numbered set by set, and ``weight``."""
    edges = ["SELECT 0 AS node, 0 AS anchor, 1.0::FLOAT AS weight WHERE false"]
    first = 0
    for name in anchor_sets:
        table = f"edges/{name}/{side}"
        if parent.has(table):
            node, anchor, weight = schema_of(table).names
            columns = f"{node}, {anchor} + {first}, {weight}"
            edges.append(f"SELECT {columns} FROM {name_literal(table)}")
        first += parent.num_rows(f"anchors/{name}")
    return " UNION ALL ".join(edges)
