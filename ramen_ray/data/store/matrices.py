"""A dataset's clicks, edges and texts as arrays, held in memory whole."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from ramen_ray.data.arrays import UInt64s, click_pairs
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import ids_in
from ramen_ray.data.store.texts import fold


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


def text_numbers(dataset: Dataset, tables: Sequence[str]) -> dict[str, UInt64s]:
    """Number the texts (rows,) of tables, by id; those that are equal when folded have one."""
    texts = {
        table: [fold(rows["text"]).cast(pa.large_string()) for rows in dataset.in_order(table)]
        for table in tables
    }
    of_all = pa.chunked_array([chunk for chunks in texts.values() for chunk in chunks])
    numbers = [chunk.indices.to_numpy() for chunk in of_all.dictionary_encode().chunks]
    ends = np.cumsum([sum(map(len, chunks)) for chunks in texts.values()])[:-1]
    return dict(zip(tables, np.split(np.concatenate(numbers).astype(np.uint64), ends), strict=True))
