"""Edges and clicks that give the answers of held-out queries away, found by the texts they join.

Texts count as equal if :func:`~ramen_ray.data.store.texts.fold` makes them so, and are compared as
themselves. The search starts from the few answers. Tables may have wrong ids, which join nothing.
"""

from collections.abc import Collection
from typing import Literal

from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import files_of, run
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT, schema_of

Protocol = Literal["strict", "as-published"]
"""Whether edges that join a held-out query to its answer are left out of a graph, or kept."""

LEAKING_EDGES = "edges that join a held-out query to its answer"
NODE_TABLES = {"query": "queries/train", "ad": "ads"}
HELD_OUT = (*SPLITS[1:], ZERO_SHOT)


def find_answers(
    connection: DuckDBPyConnection, dataset: Dataset, tables: Collection[str] | None = None
) -> None:
    """Create the table ``answers``: ``query`` and ``ad``, the folded texts of held-out clicks.

    Args:
        connection: the engine.
        dataset: the dataset directory.
        tables: those that can be read; default all. The ads must be among them.
    """
    tables = dataset.tables if tables is None else tables
    held_out = [
        f"SELECT text, ad_ids FROM {files_of(dataset, table)}"
        for table in (f"queries/{split}" for split in HELD_OUT)
        if table in tables
    ]
    nothing = "SELECT NULL::VARCHAR AS text, NULL::BIGINT[] AS ad_ids WHERE false"
    run(
        connection,
        "reading the held-out clicks",
        f"""
        CREATE TABLE answers AS
        WITH
            clicks AS (
                SELECT query, unnest(ad_ids) AS ad_id
                FROM (SELECT fold(text) AS query, ad_ids
                      FROM ({" UNION ALL ".join([nothing, *held_out])}))),
            clicked AS (
                SELECT ad_id, fold(text) AS ad FROM {files_of(dataset, "ads")}
                WHERE ad_id IN (SELECT ad_id FROM clicks))
        SELECT DISTINCT query, ad FROM clicks JOIN clicked USING (ad_id)
        WHERE query IS NOT NULL AND ad IS NOT NULL
        """,
    )


BOTH_WAYS = "SELECT query AS node, ad AS anchor FROM answers UNION SELECT ad, query FROM answers"
REVERSED = "SELECT ad AS node, query AS anchor FROM answers"


def find_leaks(
    connection: DuckDBPyConnection,
    table: str,
    nodes: str,
    anchors: str,
    pairs: str = BOTH_WAYS,
) -> None:
    """Create ``table``: all pairs ``node`` and ``anchor`` that would leak if an edge joined them.

    Args:
        connection: the engine, after :func:`find_answers`.
        table: the new table, of different pairs.
        nodes: selects the nodes' ``id`` and ``text``.
        anchors: selects the anchors' ``id`` and ``text``.
        pairs: selects pairs of folded texts; by default either end can be the held-out query.
    """
    run(
        connection,
        "looking for held-out clicks among edges",
        f"""
        CREATE TABLE {table} AS
        WITH
            answered AS ({pairs}),
            folded_nodes AS (
                SELECT id, folded FROM (SELECT id, fold(text) AS folded FROM ({nodes}))
                WHERE folded IN (SELECT node FROM answered)),
            folded_anchors AS (
                SELECT id, folded FROM (SELECT id, fold(text) AS folded FROM ({anchors}))
                WHERE folded IN (SELECT anchor FROM answered))
        SELECT DISTINCT one.id AS node, other.id AS anchor
        FROM answered
        JOIN folded_nodes AS one ON one.folded = answered.node
        JOIN folded_anchors AS other ON other.folded = answered.anchor
        """,
    )


def find_leaking_edges(
    connection: DuckDBPyConnection, dataset: Dataset, anchor_set: str, side: str, table: str
) -> None:
    """Create ``table``: pairs of a node's and an anchor's id that leak if they are an edge.

    Args:
        connection: the engine, after :func:`find_answers`.
        dataset: the dataset directory.
        anchor_set: an anchor set of it.
        side: ``query`` or ``ad``.
        table: the new table: ``node`` and ``anchor``, different pairs.
    """
    nodes = texts_of(dataset, NODE_TABLES[side])
    find_leaks(connection, table, nodes, texts_of(dataset, f"anchors/{anchor_set}"))


def find_leaking_clicks(connection: DuckDBPyConnection, dataset: Dataset, table: str) -> None:
    """Create ``table``: pairs of a train query and an ad that leak if they are a click.

    Such a click is a held-out one reversed: its query has the text of an answer, and its ad has
    the text of the held-out query.

    Args:
        connection: the engine, after :func:`find_answers`.
        dataset: the dataset directory.
        table: the new table: ``query_id`` and ``ad_id``, different pairs.
    """
    queries, ads = (texts_of(dataset, of_side) for of_side in NODE_TABLES.values())
    find_leaks(connection, table, queries, ads, REVERSED)
    connection.execute(f"ALTER TABLE {table} RENAME node TO query_id")
    connection.execute(f"ALTER TABLE {table} RENAME anchor TO ad_id")


def texts_of(dataset: Dataset, table: str) -> str:
    """Return the SQL that selects ``id`` and ``text`` of a table's rows."""
    return f"SELECT {schema_of(table).names[0]} AS id, text FROM {files_of(dataset, table)}"
