"""Anchor sets whose anchors are the texts of nodes: numbers the texts, and gives nodes their edges.

Texts, and what a search finds for them, are in files of a folder, which other processes may read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from duckdb import DuckDBPyConnection
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.engine import run, stream
from ramen_ray.data.leaks import Protocol, texts_of
from ramen_ray.data.store.dataset import Dataset, DatasetWriter
from ramen_ray.data.store.schemas import NODE_TABLES
from ramen_ray.data.tables.graphs.anchor_sets import WrittenEdges, write_edges

TEXTS_PER_BATCH = 65_536
TEXTS = pa.schema([("text", pa.string())])
NEAR = pa.schema([("text", pa.int64()), ("anchor", pa.int64()), ("weight", pa.float32())])


@dataclass(frozen=True)
class BatchTexts:
    """The distinct texts of train queries and ads, in a file of ``folder``, numbered in order."""

    folder: Path

    @classmethod
    def of_nodes(cls, connection: DuckDBPyConnection, folder: Path) -> "BatchTexts":
        """Write the texts of the nodes of the engine's dataset into ``folder``."""
        nodes = " UNION ALL ".join(texts_of(table) for table in NODE_TABLES.values())
        distinct = f"SELECT DISTINCT text FROM ({nodes}) ORDER BY text"
        with pa.ipc.new_file(str(folder / "texts.arrow"), TEXTS) as file:
            for batch in stream(connection, distinct, TEXTS_PER_BATCH):
                file.write_batch(batch.cast(TEXTS))
        return cls(folder)

    def __len__(self) -> int:
        """Return the number of texts."""
        return sum(map(len, self.batches()))

    @property
    def num_batches(self) -> int:
        """Number of :meth:`batches`."""
        return int(_open(self.folder / "texts.arrow").num_record_batches)

    def batch(self, number: int) -> pa.StringArray:
        """Read one of :meth:`batches`."""
        return _open(self.folder / "texts.arrow").get_batch(number)["text"]

    def batches(self) -> Iterator[pa.StringArray]:
        """Stream the texts in the order of their numbers."""
        yield from map(self.batch, range(self.num_batches))

    def keep_near(self, found: Iterable[tuple[Int64s, Int64s, NDArray[np.float32]]]) -> None:
        """Write the numbers of texts (n,), of their anchors (n,), and the edges' weights (n,)."""
        with pa.ipc.new_file(str(self.folder / "near.arrow"), NEAR) as file:
            for columns in found:
                arrays = map(pa.array, columns, NEAR.types)
                file.write_batch(pa.record_batch([*arrays], schema=NEAR))


def write_text_edges(
    connection: DuckDBPyConnection,
    dataset: Dataset,
    texts: BatchTexts,
    protocol: Protocol,
    name: str,
    writer: DatasetWriter,
) -> WrittenEdges:
    """Write an anchor set in which nodes have the edges of their texts, which were kept."""
    for table in ("texts", "near"):
        file = _open(texts.folder / f"{table}.arrow")
        batches = map(file.get_batch, range(file.num_record_batches))
        connection.register("rows", pa.RecordBatchReader.from_batches(file.schema, batches))
        run(connection, f"loading {table}", f"CREATE TABLE {table} AS FROM rows")
        connection.unregister("rows")
    connection.execute("CREATE VIEW anchors AS SELECT rowid AS id, text FROM texts")
    for side, table in NODE_TABLES.items():
        run(
            connection,
            f"giving {side} nodes their edges",
            f"""
            CREATE TABLE {side}_edges AS
            SELECT nodes.id AS node, near.anchor, 0 AS place, near.weight::DOUBLE AS weight
            FROM ({texts_of(table)}) AS nodes
            JOIN anchors ON anchors.text = nodes.text
            JOIN near ON near.text = anchors.id
            """,
        )
    return write_edges(connection, dataset, name, [*NODE_TABLES], protocol, writer)


def _open(file: Path) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(file)))
