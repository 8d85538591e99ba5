"""Anchor sets whose anchors are the texts of nodes: numbers the texts, and gives nodes their edges.

Texts, and the neighbours that a search finds for them, are in files, which other processes may map.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from duckdb import DuckDBPyConnection
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.engine import run, stream
from ramen_ray.data.leaks import Protocol, texts_of
from ramen_ray.data.store.dataset import Dataset, DatasetWriter
from ramen_ray.data.store.mapped_files import map_array, map_new_array
from ramen_ray.data.store.schemas import NODE_TABLES
from ramen_ray.data.tables.graphs.anchor_sets import WrittenEdges, write_edges

TEXTS_PER_BATCH = 65_536
TEXTS = pa.schema([("text", pa.string())])
NUMBERED = pa.schema([("id", pa.int64()), ("text", pa.string())])
NEAR = pa.schema([("text", pa.int64()), ("anchor", pa.int64()), ("weight", pa.float64())])


@dataclass(frozen=True)
class BatchTexts:
    """The distinct texts of train queries and ads, in a file of ``folder``, numbered in order."""

    folder: Path

    @classmethod
    def of_nodes(
        cls, connection: DuckDBPyConnection, dataset: Dataset, folder: Path
    ) -> "BatchTexts":
        """Write the texts of a dataset's nodes into ``folder``."""
        nodes = " UNION ALL ".join(texts_of(dataset, table) for table in NODE_TABLES.values())
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
        return int(self._open().num_record_batches)

    def batch(self, number: int) -> pa.StringArray:
        """Read one of :meth:`batches`."""
        return self._open().get_batch(number)["text"]

    def batches(self) -> Iterator[pa.StringArray]:
        """Stream the texts in the order of their numbers."""
        yield from map(self.batch, range(self.num_batches))

    def _open(self) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self.folder / "texts.arrow")))


@dataclass(frozen=True)
class Neighbours:
    """The anchors of each text, best first, in files.

    Attributes:
        texts: (texts, most) int64, mapped, numbers of texts.
        weights: (texts, most) float32, mapped, above 0; 0 after the last anchor.
    """

    texts: np.memmap[Any, np.dtype[np.int64]]
    weights: np.memmap[Any, np.dtype[np.float32]]

    @classmethod
    def none_yet(cls, num_texts: int, most: int, folder: Path) -> "Neighbours":
        """Make the files in ``folder``, for texts with at most ``most`` anchors."""
        shape = (num_texts, most)
        texts = map_new_array(folder / "neighbours.npy", np.int64, shape)
        return cls(texts, map_new_array(folder / "weights.npy", np.float32, shape))

    @classmethod
    def written_in(cls, folder: Path) -> "Neighbours":
        """Map the files in ``folder`` for reading."""
        return cls(map_array(folder / "neighbours.npy"), map_array(folder / "weights.npy"))

    def put_all(self, found: Iterable[tuple[Int64s, Int64s, NDArray[np.float32]]]) -> None:
        """Write texts (n,), their anchors (n,) and the weights (n,); all of a text are together.

        The anchors of a text follow one another, best first.
        """
        for rows, texts, weights in found:
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            place = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
            for array, values in ((self.texts, texts), (self.weights, weights)):
                # mapped anew each time, so that this process does not keep the pages
                np.load(str(array.filename), mmap_mode="r+")[rows, place] = values
        for array in (self.texts, self.weights):
            array.flush()  # other machines may read them

    def edges(self) -> Iterator[pa.RecordBatch]:
        """Stream the pairs of a text and an anchor, and their weights."""
        for first in range(0, len(self.weights), TEXTS_PER_BATCH):
            weights = self.weights[first : first + TEXTS_PER_BATCH]
            anchors = self.texts[first : first + TEXTS_PER_BATCH]
            row, place = np.nonzero(weights)
            columns = [first + row, anchors[row, place], weights[row, place].astype(np.float64)]
            yield pa.record_batch(columns, schema=NEAR)


def write_text_edges(
    connection: DuckDBPyConnection,
    dataset: Dataset,
    texts: BatchTexts,
    protocol: Protocol,
    name: str,
    writer: DatasetWriter,
) -> WrittenEdges:
    """Write an anchor set in which nodes have the edges of their texts.

    The :class:`Neighbours` of ``texts`` are in the same folder; nodes of equal text have equal
    edges.
    """
    neighbours = Neighbours.written_in(texts.folder)
    _load(connection, "anchors", NUMBERED, _numbered(texts))
    _load(connection, "near", NEAR, neighbours.edges())
    for side, table in NODE_TABLES.items():
        run(
            connection,
            f"giving {side} nodes their edges",
            f"""
            CREATE TABLE {side}_edges AS
            SELECT nodes.id AS node, near.anchor, 0 AS place, near.weight
            FROM ({texts_of(dataset, table)}) AS nodes
            JOIN anchors ON anchors.text = nodes.text
            JOIN near ON near.text = anchors.id
            """,
        )
    return write_edges(connection, dataset, name, [*NODE_TABLES], protocol, writer)


def _numbered(texts: BatchTexts) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in texts.batches():
        yield pa.record_batch([np.arange(first, first + len(batch)), batch], schema=NUMBERED)
        first += len(batch)


def _load(
    connection: DuckDBPyConnection, table: str, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
) -> None:
    """Create a table from a stream of rows."""
    connection.register("rows", pa.RecordBatchReader.from_batches(schema, rows))
    run(connection, f"loading {table}", f"CREATE TABLE {table} AS FROM rows")
    connection.unregister("rows")
