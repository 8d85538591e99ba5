"""A dataset's clicks and edges as matrices, held in memory whole."""

import numpy as np
from scipy.sparse import csr_array

from ramen_ray.data.arrays import click_pairs
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import ids_in


def click_matrix(dataset: Dataset, split: str) -> csr_array:
    """Read a split's clicks as (queries, ads) float32 weights, 1 each if it has none."""
    table = f"queries/{split}"
    columns = [name for name in dataset.schema(table).names if name not in ("text", "source_id")]
    queries, ads, weights = [], [], []
    for rows in dataset.batches(table, columns):
        pairs = click_pairs(rows)
        queries.append(pairs[0])
        ads.append(pairs[1])
        is_weighted = "weights" in columns
        weights.append(rows["weights"].flatten() if is_weighted else np.ones(len(pairs[0]), "f4"))
    entries = np.concatenate(weights), (np.concatenate(queries), np.concatenate(ads))
    return csr_array(entries, (dataset.num_rows(table), dataset.num_rows("ads")))


def edge_matrix(dataset: Dataset, anchor_set: str, side: str) -> csr_array:
    """Read an anchor set's edges as (nodes, anchors) float32 weights; none if it has no ``side``.

    Sides are those of :func:`~ramen_ray.data.store.schemas.schema_of`, also held-out ones.
    """
    table = f"edges/{anchor_set}/{side}"
    shape = tuple(map(dataset.num_rows, ids_in(table).values()))
    if not dataset.has(table):
        return csr_array(shape, dtype=np.float32)
    nodes, anchors, weights = (column.to_numpy() for column in dataset.read(table).columns)
    return csr_array((weights, (nodes, anchors)), shape)
