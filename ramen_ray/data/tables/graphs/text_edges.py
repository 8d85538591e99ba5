"""Anchor sets whose anchors are the texts of nodes: numbers the texts, and gives nodes their edges.

Texts, and what a search finds for them, are in files of a folder, which other processes may read.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.engine import Connection, run, stream
from ramen_ray.data.leaks import Protocol, texts_of
from ramen_ray.data.store.dataset import Dataset, DatasetWriter
from ramen_ray.data.store.schemas import NODE_TABLES
from ramen_ray.data.tables.graphs.anchor_sets import WrittenEdges, write_edges

TEXTS_PER_BATCH = 65_536
TEXTS = pa.schema([("text", pa.string())])
NEAR = pa.schema([("text", pa.int64()), ("anchor", pa.int64()), ("weight", pa.float32())])


def write_texts(connection: Connection, folder: Path) -> pa.ChunkedArray:
    """Write the distinct texts of train queries and ads, in order; returns :func:`read_texts`."""
    nodes = " UNION ALL ".join(texts_of(table) for table in NODE_TABLES.values())
    distinct = f"SELECT DISTINCT text FROM ({nodes}) ORDER BY text"
    with pa.ipc.new_file(str(folder / "texts.arrow"), TEXTS) as file:
        for batch in stream(connection, distinct, TEXTS_PER_BATCH):
            file.write_batch(batch.cast(TEXTS))
    return read_texts(folder)


def read_texts(folder: Path) -> pa.ChunkedArray:
    """Map the texts (texts,) of a folder; a text's number is its place."""
    return _mapped(folder / "texts.arrow")["text"]


def write_near(folder: Path, edges: Iterable[tuple[Int64s, Int64s, NDArray[np.float32]]]) -> None:
    """Write the numbers of texts (n,), of their anchors (n,), and the edges' weights (n,)."""
    with pa.ipc.new_file(str(folder / "near.arrow"), NEAR) as file:
        for columns in edges:
            arrays = map(pa.array, columns, NEAR.types)
            file.write_batch(pa.record_batch([*arrays], schema=NEAR))


def write_text_edges(
    connection: Connection,
    dataset: Dataset,
    folder: Path,
    protocol: Protocol,
    name: str,
    writer: DatasetWriter,
) -> WrittenEdges:
    """Write an anchor set in which nodes have the edges of their texts, from both files."""
    for table in ("texts", "near"):
        connection.register("rows", _mapped(folder / f"{table}.arrow"))
        run(connection, f"loading {table}", f"CREATE TABLE {table} AS FROM rows")
        connection.unregister("rows")
    connection.execute("CREATE VIEW anchors AS SELECT rowid AS id, text FROM texts")
    for side, table in NODE_TABLES.items():
        edges = f"""CREATE TABLE {side}_edges AS
            SELECT nodes.id AS node, near.anchor, 0 AS place, near.weight::DOUBLE AS weight
            FROM ({texts_of(table)}) AS nodes
            JOIN anchors ON anchors.text = nodes.text
            JOIN near ON near.text = anchors.id"""
        run(connection, f"giving {side} nodes their edges", edges)
    return write_edges(connection, dataset, name, [*NODE_TABLES], protocol, writer)


def _mapped(file: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()
