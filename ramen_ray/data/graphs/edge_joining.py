"""Later stages of an edge list: number its anchors, sum its edges, write both as a stream.

A task reads a range of the anchors' hashes, or of the nodes, from all staged files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, UInt64s
from ramen_ray.data.graphs.edge_staging import (
    EDGES,
    LISTED,
    LISTED_TEXTS,
    NAMES,
    staged_batches,
    staged_file,
)
from ramen_ray.data.prepared.hashing import hash_strings, insertion_points
from ramen_ray.data.store.dataset import DatasetWriter
from ramen_ray.data.store.texts import fold
from ramen_ray.data.tasks import RunTasks

ROWS_PER_PART = 1 << 20
ROWS_PER_GROUP = 1 << 20
"""Rows of a parquet row group: pyarrow's default for a whole table."""
BYTES_PER_CHUNK = 1 << 30
"""About as many bytes of texts as an Arrow array of them gets; it cannot have more than 2 GiB."""

NUMBERED = "numbered"
"""Staged anchors of a set in the order of their numbers, which is that of their hashes."""
_SUMMED = "summed"


def list_anchors(folder: Path) -> list[Booleans]:
    """Save the hashes of listed anchors' ids, and of their folded texts in the same order.

    Returns:
        which rows of each staged part repeat an id.
    """
    parts = sorted(folder.glob("anchors-??????.arrow"))
    hashes = [_column(file, "hash") for file in parts]
    listed, first = np.unique(np.concatenate(hashes), return_index=True)
    texts = [hash_strings(fold(batch["text"])) for batch in staged_batches(folder, "anchors")]
    np.save(folder / LISTED, listed)
    np.save(folder / LISTED_TEXTS, np.concatenate(texts)[first])
    repeated = np.ones(sum(map(len, hashes)), dtype=bool)
    repeated[first] = False
    return np.split(repeated, np.cumsum([len(part) for part in hashes])[:-1])


def num_anchor_parts(num_rows: int) -> int:
    """Return the number of hash ranges that gives each about :data:`ROWS_PER_PART` rows."""
    return -(-num_rows // ROWS_PER_PART)


def hash_range(part: int, num_parts: int) -> tuple[np.uint64, np.uint64 | None]:
    """Return the bounds of one of ``num_parts`` ranges of hashes; the last has no upper one."""
    high = np.uint64((part + 1 << 64) // num_parts) if part + 1 < num_parts else None
    return np.uint64((part << 64) // num_parts), high


def collect_anchors(folder: Path, part: int, num_parts: int, are_listed: bool) -> None:
    """Collect the anchors that edges name, in one of ``num_parts`` ranges of their hashes."""
    bounds = hash_range(part, num_parts)
    found = first_of_each(range_of(staged_batches(folder, "names-*"), NAMES, *bounds))
    if are_listed:
        listed = first_of_each(range_of(staged_batches(folder, "anchors"), NAMES, *bounds))
        places = np.searchsorted(listed["hash"].to_numpy(), found["hash"].to_numpy())
        found = _take(listed, places)
    write_staged(staged_file(folder, NUMBERED, part), found)


@dataclass(frozen=True)
class JoinedEdges:
    """What :func:`join_edges` wrote.

    Attributes:
        num_rows: row counts of the tables; empty if there are no edges.
        edges: the number of edges of each side.
        nodes: how many nodes of each side have edges.
    """

    num_rows: dict[str, int]
    edges: dict[str, int]
    nodes: dict[str, int]


def join_edges(
    folder: Path, name: str, sides: Sequence[str], writer: DatasetWriter, run: RunTasks
) -> JoinedEdges:
    """Sum the staged edges, and write them and the numbered anchors as an anchor set, in tasks.

    Args:
        folder: the staging folder.
        name: of the anchor set.
        sides: those that may have edges; a side without any gets no table.
        writer: writer of a dataset directory.
        run: runs the tasks.
    """
    run([partial(_plan_parts, folder, side) for side in sides])
    parts = [
        (side, n, nodes) for side in sides for n, nodes in enumerate(_part_bounds(folder, side))
    ]
    edges, nodes = (dict.fromkeys(sides, 0) for _ in range(2))
    summed = run([partial(_sum_edges, folder, *part) for part in parts])
    for (side, _, _), (num_edges, num_nodes) in zip(parts, summed, strict=True):
        edges[side] += num_edges
        nodes[side] += num_nodes
    linked = [side for side in sides if edges[side]]
    if not linked:
        return JoinedEdges({}, edges, nodes)
    (num_rows,) = run([partial(_write_tables, folder, name, linked, writer)])
    return JoinedEdges(num_rows, edges, nodes)


def _plan_parts(folder: Path, side: str) -> None:
    """Cut the nodes of a side into ranges of about :data:`ROWS_PER_PART` staged edges each."""
    degrees = np.zeros(0, dtype=np.int64)
    for batch in staged_batches(folder, side):
        nodes, counts = np.unique(batch["node"].to_numpy(), return_counts=True)
        if len(nodes) and nodes[-1] >= len(degrees):
            degrees = np.append(degrees, np.zeros(nodes[-1] + 1 - len(degrees), dtype=np.int64))
        degrees[nodes] += counts
    edges_before = np.cumsum(degrees) - degrees
    _, starts = np.unique(edges_before // ROWS_PER_PART, return_index=True)
    np.save(folder / f"{side}-bounds.npy", np.append(starts, len(degrees)))


def _part_bounds(folder: Path, side: str) -> list[tuple[int, int]]:
    """Return the ranges of nodes that :func:`_plan_parts` made; none if there are no edges."""
    return list(pairwise(np.load(folder / f"{side}-bounds.npy").tolist()))


def _sum_edges(folder: Path, side: str, part: int, nodes: tuple[int, int]) -> tuple[int, int]:
    """Sum the edges of a range of nodes, and number their anchors.

    The weights of an edge are added in the order in which they were read.

    Returns:
        the number of different edges, and of their nodes.
    """
    edges = range_of(staged_batches(folder, side), EDGES, np.int64(nodes[0]), np.int64(nodes[1]))
    node, anchor, weight = (column.to_numpy() for column in edges.columns)
    order = np.lexsort((anchor, node))
    node, anchor, weight = node[order], anchor[order], weight[order]
    is_new = np.append(True, (np.diff(node) != 0) | (anchor[1:] != anchor[:-1]))
    weights = np.bincount(np.cumsum(is_new) - 1, weight).astype(np.float32)
    node, anchors = node[is_new], insertion_points(anchor[is_new], numbered_hashes(folder))
    columns = {f"{side}_id": node, "anchor_id": anchors, "weight": weights}
    write_staged(staged_file(folder, f"{_SUMMED}-{side}", part), pa.table(columns))
    return len(node), len(np.unique(node))


def _write_tables(
    folder: Path, name: str, sides: Sequence[str], writer: DatasetWriter
) -> dict[str, int]:
    """Write ``anchors/<name>`` and the edges of ``sides`` as streams; returns their row counts."""
    written = {f"anchors/{name}": _write_table(writer, f"anchors/{name}", _anchor_rows(folder))}
    for side in sides:
        table = f"edges/{name}/{side}"
        summed = staged_batches(folder, f"{_SUMMED}-{side}")
        written[table] = _write_table(writer, table, (pa.Table.from_batches([b]) for b in summed))
    return written


def _write_table(writer: DatasetWriter, table: str, batches: Iterable[pa.Table]) -> int:
    num_rows = 0

    def counted() -> Iterator[pa.Table]:
        nonlocal num_rows
        for rows in _regrouped(batches):
            num_rows += len(rows)
            yield rows

    writer.write(table, counted())
    return num_rows


def _regrouped(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Regroup a stream of batches into row groups of :data:`ROWS_PER_GROUP`."""
    waiting: list[pa.Table] = []
    for batch in batches:
        waiting.append(batch)
        while sum(map(len, waiting)) >= ROWS_PER_GROUP:
            rows = pa.concat_tables(waiting)
            yield rows[:ROWS_PER_GROUP].combine_chunks()
            waiting = [rows[ROWS_PER_GROUP:]]
    if sum(map(len, waiting)):
        yield pa.concat_tables(waiting).combine_chunks()


def _anchor_rows(folder: Path) -> Iterator[pa.Table]:
    start = 0
    for batch in staged_batches(folder, NUMBERED):
        ids = np.arange(start, start + len(batch))
        yield pa.table({"anchor_id": ids, "text": batch["text"]})
        start += len(batch)


def numbered_hashes(folder: Path) -> UInt64s:
    """Return the hashes (anchors,) of all anchors in the order of their numbers, so ascending."""
    batches = staged_batches(folder, NUMBERED)
    return np.concatenate(
        [np.empty(0, np.uint64), *(batch["hash"].to_numpy() for batch in batches)]
    )


def first_of_each(names: pa.Table) -> pa.Table:
    """Return the first row of each hash, by ascending hash."""
    hashes = names["hash"].to_numpy()
    _, first = np.unique(hashes, return_index=True)
    is_first = np.zeros(len(hashes), dtype=bool)
    is_first[first] = True
    return _take(names.filter(pa.array(is_first)), np.argsort(hashes[is_first]))


def _take(names: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    """Return ``rows`` (n,) of a table of :data:`NAMES`, whose texts may have more than 2 GiB."""
    texts = names["text"].cast(pa.large_string()).combine_chunks()
    num_bytes = np.cumsum(pc.fill_null(pc.binary_length(texts), 0).to_numpy()[rows])
    _, starts = np.unique(num_bytes // BYTES_PER_CHUNK, return_index=True)
    chunks = [texts.take(pa.array(some)).cast(pa.string()) for some in np.split(rows, starts[1:])]
    hashes = names["hash"].to_numpy()[rows]
    return pa.table([hashes, pa.chunked_array(chunks, pa.string())], schema=NAMES)


def range_of(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    low: np.integer,
    high: np.integer | None,
) -> pa.Table:
    """Return the rows from ``low`` up to ``high`` of batches sorted by their first column."""
    found = []
    for batch in batches:
        keys = batch[0].to_numpy()
        start = int(np.searchsorted(keys, low))
        stop = len(keys) if high is None else int(np.searchsorted(keys, high))
        if stop > start:
            found.append(batch[start:stop])
    return pa.Table.from_batches(found, schema)


def _column(file: Path, name: str) -> NDArray[np.uint64]:
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()[name].to_numpy()


def write_staged(file: Path, rows: pa.Table) -> None:
    """Write rows as a staged file, a batch for each of their chunks."""
    with pa.ipc.new_file(str(file), rows.schema) as writer:
        writer.write_table(rows)
