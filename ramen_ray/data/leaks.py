"""Edges and clicks that give the answers of held-out queries away, found by the texts they join.

Texts count as equal if :func:`~ramen_ray.data.store.texts.fold` makes them so, and are compared as
themselves. The search starts from the few answers. Tables may have wrong ids, which join nothing.
"""

from collections.abc import Mapping
from typing import Literal

from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import files_of, run
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT, schema_of

Protocol = Literal["strict", "as-published"]
"""Whether edges that join a held-out query to its answer are left out of a graph, or kept."""

LEAKING_EDGES = "edges that join a held-out query to its answer"
HELD_OUT = (*SPLITS[1:], ZERO_SHOT)


def find_answers(connection: DuckDBPyConnection, dataset: Dataset) -> None:
    """Create the table ``answers``: ``query`` and ``ad``, the folded texts of held-out clicks."""
    relations = {table: files_of(dataset, table) for table in dataset.tables}
    create_answers(connection, relations, "fold(text)")


def create_answers(
    connection: DuckDBPyConnection, relations: Mapping[str, str], folded: str
) -> None:
    """Create the table ``answers`` of relations, by table; ``folded`` is SQL for a folded text."""
    held_out = [
        f"SELECT {folded} AS query, ad_ids FROM {relations[table]}"
        for table in (f"queries/{split}" for split in HELD_OUT)
        if table in relations
    ]
    nothing = "SELECT NULL::VARCHAR AS query, NULL::BIGINT[] AS ad_ids WHERE false"
    run(
        connection,
        "reading the held-out clicks",
        f"""
        CREATE TABLE IF NOT EXISTS answers AS -- a connection serves one dataset
        WITH
            clicks AS (
                SELECT query, unnest(ad_ids) AS ad_id
                FROM ({" UNION ALL ".join([nothing, *held_out])})),
            clicked AS (
                SELECT ad_id, {folded} AS ad FROM {relations["ads"]}
                WHERE ad_id IN (SELECT ad_id FROM clicks))
        SELECT DISTINCT query, ad FROM clicks JOIN clicked USING (ad_id)
        WHERE query IS NOT NULL AND ad IS NOT NULL
        """,
    )


BOTH_WAYS = "SELECT query AS node, ad AS anchor FROM answers UNION SELECT ad, query FROM answers"
REVERSED = "SELECT ad AS node, query AS anchor FROM answers"
"""Pairs of a train query and an ad whose click is a held-out one reversed."""


def find_leaks(
    connection: DuckDBPyConnection,
    table: str,
    nodes: str,
    anchors: str,
    pairs: str = BOTH_WAYS,
) -> None:
    """Create ``table``: all pairs ``node`` and ``anchor`` that would leak if an edge joined them.

    Call :func:`find_answers` before. ``nodes`` and ``anchors`` are SQL that selects their ``id``
    and ``text``; ``pairs`` selects folded texts, and by default either can be the held-out query's.
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


def texts_of(dataset: Dataset, table: str) -> str:
    """Return the SQL that selects ``id`` and ``text`` of a table's rows."""
    return f"SELECT {schema_of(table).names[0]} AS id, text FROM {files_of(dataset, table)}"
