"""Edges and clicks that give held-out answers away, or repeat train clicks, found by their texts.

Texts count as equal if :func:`~ramen_ray.data.store.texts.fold` makes them so, and are compared as
themselves. The search starts from the few answers. Tables may have wrong ids, which join nothing.
"""

from collections.abc import Mapping
from typing import Literal

from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import files_of, run
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT, schema_of

Protocol = Literal["strict", "unclicked", "as-published"]
"""Which edges a graph leaves out: those that join a held-out query to its answer; also those that
repeat a train click; or none."""

LEAKING_EDGES = "edges that join a held-out query to its answer"
REPEATING_EDGES = "edges that repeat a train click"
OTHER_END = {"query": "ad", "ad": "query"}
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

    Call :func:`find_answers` before. ``nodes`` and ``anchors`` are SQL that selects ``id`` and
    ``folded``; ``pairs`` selects folded texts, and by default either can be the held-out query's.
    """
    run(
        connection,
        "looking for held-out clicks among edges",
        f"""
        CREATE TABLE {table} AS
        SELECT DISTINCT one.id AS node, other.id AS anchor
        FROM ({pairs}) AS answered
        JOIN ({nodes}) AS one ON one.folded = answered.node
        JOIN ({anchors}) AS other ON other.folded = answered.anchor
        """,
    )


def find_repeats(
    connection: DuckDBPyConnection, table: str, side: str, clicks: str, others: str, anchors: str
) -> None:
    """Create ``table``: all pairs ``node`` and ``anchor`` whose anchor is the click's other end.

    That is, of a node that is an ad, the text of a train query that led to it, and the reverse.

    Args:
        connection: the engine.
        table: the name.
        side: of the nodes, query or ad.
        clicks: SQL that selects ``query_id`` and ``ad_ids`` of train queries.
        others: SQL that selects ``id`` and ``folded`` of the other side's nodes.
        anchors: SQL that selects ``id`` and ``folded``.
    """
    run(
        connection,
        "looking for train clicks among edges",
        f"""
        CREATE TABLE {table} AS
        WITH
            clicks AS (SELECT query_id, unnest(ad_ids) AS ad_id FROM ({clicks})),
            named AS (
                SELECT anchors.id AS anchor, others.id AS other
                FROM ({anchors}) AS anchors JOIN ({others}) AS others USING (folded))
        SELECT DISTINCT {side}_id AS node, anchor
        FROM clicks JOIN named ON {OTHER_END[side]}_id = other
        """,
    )


def texts_of(dataset: Dataset, table: str) -> str:
    """Return the SQL that selects ``id`` and ``text`` of a table's rows."""
    return f"SELECT {schema_of(table).names[0]} AS id, text FROM {files_of(dataset, table)}"


def folded(texts: str) -> str:
    """Return the SQL that selects ``id`` and ``folded`` of what ``texts`` selects."""
    return f"SELECT id, fold(text) AS folded FROM ({texts})"
