"""Anchor sets: how their tables are written, and put whole into a dataset directory or not at all.

The tables are made from these of the engine:

* ``{side}_edges`` (``node``, ``anchor``, ``place``, ``weight``): the weights of a repeated edge are
  summed in the order of ``place``.
* ``anchors`` (``id``, ``text``): numbered in the order of ``id``; those without edges are dropped.

Where anchors are the texts of nodes, these texts, and what a search finds for them, are in files of
a folder, which other processes may read.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.checks.rules import find_answers, leaking, texts_of
from ramen_ray.data.engine import TEXTS_PER_BATCH, Connection, count, run, stream
from ramen_ray.data.store.dataset import (
    WHILE_READ,
    Dataset,
    DatasetError,
    DatasetWriter,
    replace_tables,
    to_change,
)
from ramen_ray.data.store.made_folder import not_in_use, owned_folder
from ramen_ray.data.store.schemas import NODE_TABLES, UNFINISHED, Protocol
from ramen_ray.errors import without_secrets
from ramen_ray.naming import naming_fault

NODES = "nodes"
"""In :func:`folder_beside`: a digest of the queries and ads, taken before they are read."""
SHOWN = {"query": "train queries", "ad": "ads"}

logger = logging.getLogger(__name__)


def write_edges(
    connection: Connection,
    dataset: Dataset,
    name: str,
    sides: Sequence[str],
    protocol: Protocol,
    writer: DatasetWriter,
) -> dict[str, int]:
    """Write the anchor set ``name``; a side without edges gets no table, nor does an empty set.

    Returns counts for people: rows by table, nodes without edges, edges dropped and merged.
    """
    counts = {}
    if protocol == "strict":
        counts = _drop_leaks(connection, dataset.tables, sides)
    staged = {side: count(connection, f"SELECT count(*) FROM {side}_edges") for side in sides}
    if not any(staged.values()):
        return counts
    used = " UNION ALL ".join(f"SELECT anchor FROM {side}_edges" for side in sides)
    create = f"""CREATE OR REPLACE TABLE numbered AS
        SELECT row_number() OVER (ORDER BY id) - 1 AS number, id, text FROM anchors
        WHERE id IN ({used})"""
    run(connection, "numbering the anchors", create)
    numbered = "SELECT number AS anchor_id, text FROM numbered ORDER BY number"
    anchors = stream(connection, numbered, TEXTS_PER_BATCH)
    counts[f"anchors/{name}"] = writer.write(f"anchors/{name}", anchors)
    for side in sides:
        linked = count(connection, f"SELECT count(DISTINCT node) FROM {side}_edges")
        nodes = NODE_TABLES[side]
        counts[f"{SHOWN[side]} without edges"] = dataset.num_rows(nodes) - linked
        if staged[side]:
            in_order = f"""SELECT node AS {side}_id, number AS anchor_id, weight
                FROM {side}_edges AS edges JOIN numbered ON numbered.id = edges.anchor
                ORDER BY node, number, place"""
            table = f"edges/{name}/{side}"
            counts[table] = writer.write(table, _summed(stream(connection, in_order)))
            counts[f"repeated {side} edges merged"] = staged[side] - counts[table]
    return counts


def _drop_leaks(
    connection: Connection, tables: Sequence[str], sides: Sequence[str]
) -> dict[str, int]:
    """Drop the edges that join a held-out query to its answer; returns how many of each side."""
    dropped = {}
    find_answers(connection, tables)
    anchors = "SELECT id, fold(text) AS folded FROM anchors"
    for side in sides:
        kind = f"{side} edges that join a held-out query to its answer"
        delete = f"""DELETE FROM {side}_edges AS edges
            USING ({leaking(texts_of(NODE_TABLES[side]), anchors)}) AS pairs
            WHERE edges.node = pairs.node AND edges.anchor = pairs.anchor"""
        run(connection, f"dropping {kind}", delete)
        (dropped[kind],) = connection.fetchall()[0]
    return dropped


def _summed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Sum the weights of equal edges, which follow one another, in their order."""
    # the engine's sum(weight ORDER BY place) would hold all edges in memory
    waiting: list[pa.Table] = []  # the last edge of a batch may go on in the next
    for batch in batches:
        rows = pa.concat_tables([*waiting, pa.Table.from_batches([batch])])
        node, anchor, weight = (column.to_numpy() for column in rows.columns)
        is_new = np.append(True, (np.diff(node) != 0) | (np.diff(anchor) != 0))
        sums = np.bincount(np.cumsum(is_new) - 1, weight)
        edges = pa.table([node[is_new], anchor[is_new], sums], names=rows.column_names)
        yield edges[:-1]
        waiting = [edges[-1:]]
    yield from waiting


def check_spelling(name: str) -> None:
    """Raise a DatasetError if an anchor set cannot have this name."""
    if fault := naming_fault(name, dots=False):
        raise DatasetError(f"anchor set: {fault}")


def check_name(dataset: Dataset, name: str, replace: bool) -> None:
    """Raise a DatasetError if a set cannot be called so, or is, and ``replace`` is not set.

    So it does if a training holds the dataset.
    """
    check_spelling(name)
    if name in dataset.anchor_sets and not replace:
        raise DatasetError(
            f"{dataset.path} has an anchor set {name!r} already; give another name, or set replace"
        )
    with not_in_use(dataset.path):
        pass


@contextmanager
def folder_beside(dataset: Dataset) -> Iterator[Path]:
    """Yield a hidden folder in the dataset directory, to write a set in."""
    with owned_folder(dataset.path) as aside:
        (aside / NODES).write_text(_content_of_nodes(dataset))
        yield aside


def put_in_place(
    aside: Path, dataset: Dataset, name: str, made: Mapping[str, Any], replace: bool
) -> None:
    """Move an anchor set's tables from :func:`folder_beside` into the dataset directory.

    ``made`` says how the set was made, for ``dataset.json``. Raises a DatasetError if there is a
    set of this name, unless ``replace`` is set, or if queries or ads have changed.
    """
    with to_change(dataset.path) as now:
        if _content_of_nodes(now) != (aside / NODES).read_text():
            raise DatasetError(f"{dataset.path} has changed {WHILE_READ}")
        places = _places(name)
        # an interrupted call has left half-written tables
        if not (replace or (now.path / f"{UNFINISHED}{name}").exists()):
            for place in filter(Path.exists, map(now.path.joinpath, places)):
                raise DatasetError(
                    f"{place} exists already; move it away, give another name, or set replace"
                )
        made_by = {**now.metadata.get("anchor_sets", {}), name: dict(made)}
        replace_tables(now, places, name, {"anchor_sets": made_by}, aside)


def remove_anchor_set(dataset_path: Path, name: str) -> None:
    """Remove an anchor set from a dataset directory.

    Raises a DatasetError if there is none of this name, or a training holds the dataset.
    """
    with to_change(dataset_path) as now:
        if name not in now.anchor_sets:
            there = ", ".join(now.anchor_sets) or "none"
            raise DatasetError(f"{now.path} has no anchor set {name!r}; there are: {there}")
        made_by = now.metadata.get("anchor_sets", {})
        others = {other: made for other, made in made_by.items() if other != name}
        replace_tables(now, _places(name), name, {"anchor_sets": others})


def made_by(how: str, *settings: Any) -> dict[str, Any]:
    """Say in ``dataset.json`` by what and with which dataclasses of settings a set was made."""
    given = {name: value for group in settings for name, value in asdict(group).items()}
    return {"made_by": how, "settings": without_secrets(given)}


def _content_of_nodes(dataset: Dataset) -> str:
    return dataset.content_of(
        table for table in dataset.tables if not table.startswith(("anchors/", "edges/"))
    )


def _places(name: str) -> tuple[str, str]:
    return f"edges/{name}", f"anchors/{name}.parquet"


TEXTS_PER_BLOCK = 65_536
TEXTS = pa.schema([("text", pa.string())])
NEAR = pa.schema([("text", pa.int64()), ("anchor", pa.int64()), ("weight", pa.float32())])


def write_texts(connection: Connection, folder: Path) -> pa.ChunkedArray:
    """Write the distinct texts of train queries and ads, in order; returns :func:`read_texts`."""
    nodes = " UNION ALL ".join(texts_of(table) for table in NODE_TABLES.values())
    distinct = f"SELECT DISTINCT text FROM ({nodes}) ORDER BY text"
    with pa.ipc.new_file(str(folder / "texts.arrow"), TEXTS) as file:
        for batch in stream(connection, distinct, TEXTS_PER_BLOCK):
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
) -> dict[str, int]:
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
