"""A user's own edges, as an anchor set of a dataset directory."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ramen_ray.data.checks.validation import check
from ramen_ray.data.engine import Connection, count, engine, name_literal, run
from ramen_ray.data.findings import FaultKind, Finding, raise_errors
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.store.schemas import NODE_TABLES, PLURAL, SIDES, Protocol, Side
from ramen_ray.data.tables.graphs import anchor_sets, nodes
from ramen_ray.data.tables.reading.columns import ADVICE, NullWords, text_column, weight_column
from ramen_ray.data.tables.reading.files import pinned
from ramen_ray.data.tables.reading.loading import UserTable

logger = logging.getLogger(__name__)

PLACES_OF_A_SIDE = 1 << 62
"""Above all places: an anchor that edges of queries have comes before those that only ads have."""


@dataclass(frozen=True)
class EdgeColumns:
    """Names of the columns in tables of edges and anchors."""

    edges_query: str | None = None
    """Query of an edge: your id of it, its text, or, if the dataset does not have your ids, its
    number among the train queries; default query, or in an import the clicks' column."""
    edges_ad: str | None = None
    """Ad of an edge: your id of it, its text, or, if the dataset does not have your ids, its
    number; default ad_id, or in an import the clicks' column."""
    edges_anchor: str = "anchor"
    """Anchor of an edge: its id, or its text if there is no table of anchors."""
    edges_weight: str | None = None
    """Weight of an edge; without it every edge has weight 1."""
    anchor_id: str = "anchor_id"
    """Id of an anchor in a table of anchors."""
    anchor_text: tuple[str, ...] = ("text",)
    """Text of an anchor in a table of anchors; several columns are joined by a space."""


@dataclass(frozen=True)
class EdgeList:
    """Where the edges are: CSV, TSV, JSON lines or parquet; files, folders or globs."""

    query_edges: str | None = None
    """Edges of queries; those of validation and test queries are left out."""
    ad_edges: str | None = None
    """Edges of ads."""
    anchors: str | None = None
    """Table of the anchors' ids and texts; without it, edges name anchors by text."""
    columns: EdgeColumns = field(default_factory=EdgeColumns)
    """Names of the columns in the tables."""
    null_words: NullWords = "refuse"
    """What to do with rows whose name or text is a word for nothing, such as NULL or N/A, if there
    are more than a few."""
    skip_bad_rows: bool = False
    """Leave out and count rows with empty cells, bad weights, or unknown queries, ads and anchors,
    instead of refusing them."""
    protocol: Protocol = "strict"
    """strict leaves out edges that join a held-out query to its answer; as-published keeps all."""
    encoding: str = "utf-8"
    """Encoding of text files, such as windows-1252."""

    @property
    def of_sides(self) -> dict[Side, str]:
        """The given tables of edges, by side."""
        given: dict[Side, str | None] = {"query": self.query_edges, "ad": self.ad_edges}
        return {side: source for side, source in given.items() if source}


def add_edge_list(
    dataset_path: Path,
    name: str,
    edge_list: EdgeList,
    replace: bool = False,
    memory: str | None = None,
) -> dict[str, int]:
    """Add an anchor set from a user's edges to a dataset directory; returns counts for people.

    For ``memory`` see :func:`~ramen_ray.data.engine.engine`. Raises a DatasetError if the dataset
    is not usable, the name is taken, edges are wrong (names files and rows), or none is left.
    """
    dataset = Dataset(dataset_path)
    anchor_sets.check_name(dataset, name, replace)
    check(dataset)
    edge_list = pinned(edge_list, "query_edges", "ad_edges", "anchors")
    tables = open_tables(edge_list, dataset.metadata)
    made = anchor_sets.made_by("edges", edge_list)
    with (
        anchor_sets.folder_beside(dataset) as aside,
        engine(aside, memory, dataset) as connection,
    ):
        writer = DatasetWriter(aside)
        counts = write_edge_list(connection, dataset, edge_list, tables, name, writer)
        anchor_sets.put_in_place(aside, dataset, name, made, replace)
    return counts


def write_edge_list(
    connection: Connection,
    dataset: Dataset,
    edge_list: EdgeList,
    tables: Mapping[str, UserTable],
    name: str,
    writer: DatasetWriter,
) -> dict[str, int]:
    """Write a user's edges, of :func:`open_tables`, as an anchor set; repeated edges are summed.

    The dataset's names and held-out clicks stay in the connection, for its next list. Raises a
    DatasetError if edges are wrong (names files and rows), or none is left; returns counts.
    """
    sides = list(edge_list.of_sides)
    for side in sides:
        nodes.create_names(connection, dataset, side)
        weight = "weight" if edge_list.columns.edges_weight else "1.0::DOUBLE AS weight"
        rows = f"{side}_rows"
        tables[side].load(connection, rows, nodes.named(side, f"place, anchor, {weight}"))
        nodes.read_numbers(connection, dataset, side, rows)
    _create_anchors(connection, tables, sides)
    if "anchors" not in tables:
        source = " and ".join(tables[side].source for side in sides)
        _warn_of_ids(connection, dataset, source, edge_list.columns.edges_anchor)
    left_out = Counter[str]()
    for side in sides:
        left_out += _unknown(connection, tables[side], side, "anchors" in tables)
        edges = f"""CREATE OR REPLACE TABLE {side}_edges AS
            SELECT place, node, anchors.id AS anchor, weight
            FROM {side}_rows AS one JOIN anchors ON anchors.name = one.anchor
            WHERE node >= 0"""
        run(connection, f"numbering the ends of {side} edges", edges)
        connection.execute(f"DROP TABLE {side}_rows")
    refused = [finding for table in tables.values() for finding in table.refused()]
    raise_errors(f"the edge list of anchor set {name!r}", refused)  # all tables' at once
    for table in tables.values():
        table.check()
        table.refuse_no_rows()
        left_out += table.left_out
    written = anchor_sets.write_edges(connection, dataset, name, sides, edge_list.protocol, writer)
    counts = written | left_out
    if f"anchors/{name}" not in written:
        left = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
        raise DatasetError(f"the edge list of anchor set {name!r} leaves no edges: {left}")
    return counts


def open_tables(edge_list: EdgeList, metadata: Mapping[str, Any]) -> dict[str, UserTable]:
    """Find the tables' files, by role; a DatasetError if there are no edges, files or columns."""
    if not edge_list.of_sides:
        raise DatasetError("there are no edges; give query_edges, ad_edges or both")
    columns = edge_list.columns
    null_words = edge_list.null_words
    is_listed = edge_list.anchors is not None and null_words == "refuse"  # NA may be a name
    have_ids = bool(edge_list.anchors) and columns.anchor_text != (columns.anchor_id,)
    as_name = partial(text_column, are_ids=have_ids)
    anchor = as_name(columns.edges_anchor, "keep" if is_listed else null_words)
    reading = edge_list.skip_bad_rows, edge_list.encoding
    tables: dict[str, UserTable] = {}
    if edge_list.anchors:
        of_anchors = {"name": as_name(columns.anchor_id, null_words)}
        if have_ids:
            of_anchors["text"] = text_column(columns.anchor_text, null_words)
        tables["anchors"] = UserTable(edge_list.anchors, of_anchors, *reading)
    ends = {"query": columns.edges_query or "query", "ad": columns.edges_ad or "ad_id"}
    for side, source in edge_list.of_sides.items():
        node = nodes.node_names(metadata, side, ends[side], null_words)
        of_edges = {"name": node, "anchor": anchor}
        if columns.edges_weight:
            of_edges["weight"] = weight_column(columns.edges_weight)
        tables[side] = UserTable(source, of_edges, *reading)
    return tables


def _create_anchors(
    connection: Connection, tables: Mapping[str, UserTable], sides: Sequence[str]
) -> None:
    """Create ``anchors``: ``id`` (the first place), ``name`` and ``text``."""
    listed = tables.get("anchors")
    if listed:
        text = "text" if "text" in listed.columns else "name AS text"
        listed.load(connection, "listed", f"SELECT place, name, {text} FROM source")
        rows = "FROM listed"
        text = "arg_min(text, place)"
    else:
        places = {"query": 0, "ad": PLACES_OF_A_SIDE}
        columns = "SELECT place + {} AS place, anchor AS name FROM {}_rows WHERE node >= 0"
        rows = " UNION ALL ".join(columns.format(places[side], side) for side in sides)
        text = "name"
    anchors = f"""CREATE OR REPLACE TABLE anchors AS
        SELECT min(place) AS id, name, {text} AS text FROM ({rows}) GROUP BY name"""
    run(connection, "collecting the anchors", anchors)
    if listed:
        repeated = "SELECT place, name FROM listed ANTI JOIN anchors ON anchors.id = listed.place"
        kind = FaultKind("rows repeat the anchor of an earlier row", ADVICE)
        listed.report(connection, "name", kind, repeated)


def _warn_of_ids(connection: Connection, dataset: Dataset, source: str, column: str) -> None:
    """Say if most ``anchors`` are ids of queries or of ads, which a model would read as texts."""
    num_anchors = count(connection, "SELECT count(*) FROM anchors")
    for side in SIDES:
        nodes_table = NODE_TABLES[side]
        if "source_id" not in dataset.schema(nodes_table).names:
            continue
        ids = f"""SELECT trimmed(source_id) FROM {name_literal(nodes_table)}
            WHERE trimmed(source_id) <> trimmed(text)"""
        num_ids = count(connection, f"SELECT count(*) FROM anchors WHERE name IN ({ids})")
        if 2 * num_ids > num_anchors:
            message = f"{num_ids} of {num_anchors} anchors are ids of {PLURAL[side]}"
            advice = (
                "they are read as texts; give the table of their texts by --anchors, and its"
                " columns by --columns.anchor-id and --columns.anchor-text"
            )
            logger.warning("%s", Finding("warning", source, message, advice, column=column))


def _unknown(
    connection: Connection, table: UserTable, side: Side, are_listed: bool
) -> Counter[str]:
    """Report rows with unknown nodes or anchors; count those of nodes that must not have edges."""
    unknown = f"SELECT place, unknown FROM {side}_rows WHERE node IS NULL"
    kind = FaultKind(f"rows name {PLURAL[side]} that the dataset does not have", ADVICE)
    table.report(connection, "name", kind, unknown)
    if are_listed:
        unknown = f"""SELECT DISTINCT place, anchor FROM {side}_rows AS one
            ANTI JOIN anchors ON anchors.name = one.anchor"""
        kind = FaultKind("rows name anchors that the table of anchors does not have", ADVICE)
        table.report(connection, "anchor", kind, unknown)
    of_kind = {
        nodes.HELD_OUT_NODE: f"{side} edges of validation and test queries",
        nodes.LEFT_OUT_NODE: f"{side} edges of {PLURAL[side]} that the import left out",
    }
    sql = f"SELECT node, count(*) FROM {side}_rows WHERE node < 0 GROUP BY node ORDER BY 1 DESC"
    return Counter({of_kind[node]: edges for node, edges in connection.sql(sql).fetchall()})
