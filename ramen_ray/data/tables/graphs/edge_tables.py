"""The last steps of any anchor set: drop what leaks, number the anchors, write both tables.

They start from these tables of the engine:

* ``{side}_edges`` (``node``, ``anchor``, ``place``, ``weight``): the weights of a repeated edge are
  summed in the order of ``place``.
* ``anchors`` (``id``, ``text``): numbered in the order of ``id``; those without edges are dropped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import count, run, stream
from ramen_ray.data.leaks import (
    LEAKING_EDGES,
    Protocol,
    find_answers,
    find_leaks,
    texts_of,
)
from ramen_ray.data.store.dataset import Dataset, DatasetWriter
from ramen_ray.data.store.schemas import NODE_TABLES

TEXTS_PER_BATCH = 2048
"""An Arrow array of texts cannot have more than 2 GiB."""


@dataclass(frozen=True)
class WrittenEdges:
    """What was written.

    Attributes:
        num_rows: row counts of the tables; empty if there are no edges.
        linked: how many nodes of each side have edges.
        counts: how many edges were left out, by reason, or merged.
    """

    num_rows: dict[str, int]
    linked: dict[str, int]
    counts: dict[str, int]


def drop_leaks(
    connection: DuckDBPyConnection, dataset: Dataset, sides: Sequence[str], protocol: Protocol
) -> dict[str, int]:
    """Drop edges that join a held-out query to its answer, if ``protocol`` is strict.

    Returns:
        how many there were of each side; nothing if they are kept.
    """
    if protocol == "as-published":
        return {}
    dropped = {}
    find_answers(connection, dataset)
    for side in sides:
        nodes = texts_of(dataset, NODE_TABLES[side])
        find_leaks(connection, f"{side}_leaks", nodes, "SELECT id, text FROM anchors")
        ((dropped[f"{side} {LEAKING_EDGES}"],),) = connection.execute(
            f"""
            DELETE FROM {side}_edges AS edges USING {side}_leaks AS leaks
            WHERE edges.node = leaks.node AND edges.anchor = leaks.anchor
            """
        ).fetchall()
    return dropped


def write_edges(
    connection: DuckDBPyConnection, name: str, sides: Sequence[str], writer: DatasetWriter
) -> WrittenEdges:
    """Write the anchor set ``name``; a side without edges gets no table, nor does an empty set."""
    staged = {side: count(connection, f"SELECT count(*) FROM {side}_edges") for side in sides}
    linked = {
        side: count(connection, f"SELECT count(DISTINCT node) FROM {side}_edges") for side in sides
    }
    if not any(staged.values()):
        return WrittenEdges({}, linked, {})
    _number_anchors(connection, sides)
    numbered = "SELECT number AS anchor_id, text FROM numbered ORDER BY number"
    anchors = stream(connection, numbered, TEXTS_PER_BATCH)
    num_rows = {f"anchors/{name}": _write(writer, f"anchors/{name}", anchors)}
    merged = {}
    for side in sides:
        if staged[side]:
            table = f"edges/{name}/{side}"
            num_rows[table] = _write(writer, table, _summed(stream(connection, _in_order(side))))
            merged[f"repeated {side} edges merged"] = staged[side] - num_rows[table]
    return WrittenEdges(num_rows, linked, merged)


def _number_anchors(connection: DuckDBPyConnection, sides: Sequence[str]) -> None:
    used = " UNION ALL ".join(f"SELECT anchor FROM {side}_edges" for side in sides)
    run(
        connection,
        "numbering the anchors",
        f"""
        CREATE TABLE numbered AS
        SELECT row_number() OVER (ORDER BY id) - 1 AS number, id, text FROM anchors
        WHERE id IN ({used})
        """,
    )


def _in_order(side: str) -> str:
    """Select a side's edges as they are summed and written."""
    return f"""
        SELECT node AS {side}_id, number AS anchor_id, weight
        FROM {side}_edges AS edges JOIN numbered ON numbered.id = edges.anchor
        ORDER BY node, number, place
    """


def _summed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Sum the weights of equal edges, which follow one another, in their order."""
    waiting: list[np.ndarray] | None = None  # the last edge of a batch may go on in the next
    names: list[str] = []
    for batch in batches:
        names = batch.schema.names
        columns = [column.to_numpy() for column in batch.columns]
        if waiting is not None:
            columns = [np.append(*both) for both in zip(waiting, columns, strict=True)]
        node, anchor, weight = columns
        is_new = np.append(True, (np.diff(node) != 0) | (np.diff(anchor) != 0))
        sums = np.bincount(np.cumsum(is_new) - 1, weight)
        edges = [node[is_new], anchor[is_new], sums]
        yield pa.table([column[:-1] for column in edges], names=names)
        waiting = [column[-1:] for column in edges]
    if waiting is not None:
        yield pa.table(waiting, names=names)


def _write(writer: DatasetWriter, table: str, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Write a table in row groups of a fixed size; returns its row count."""
    writer.write(table, batches)
    num_rows: int = pq.read_metadata(writer.folder / f"{table}.parquet").num_rows
    return num_rows
