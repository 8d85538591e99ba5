"""Edges and clicks that give held-out answers away, found by their texts.

Texts are compared as :func:`~ramen_ray.data.store.same_texts.fold` makes them. The search starts
from the few answers. Tables may have wrong ids, which join nothing.
"""

from collections.abc import Collection
from typing import Literal

from ramen_ray.data.engine import Connection, name_literal, run
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT, schema_of

Protocol = Literal["strict", "as-published"]
"""Which edges a graph leaves out: those that join a held-out query to its answer, or none."""

HELD_OUT = (*SPLITS[1:], ZERO_SHOT)


def find_answers(connection: Connection, tables: Collection[str]) -> None:
    """Create ``answers`` of the dataset's ``tables``: ``query`` and ``ad``, both folded texts."""
    held_out = [
        f"SELECT folded AS query, ad_ids FROM {name_literal(table)}"
        for table in (f"queries/{split}" for split in HELD_OUT)
        if table in tables
    ]
    nothing = "SELECT NULL::VARCHAR AS query, NULL::BIGINT[] AS ad_ids WHERE false"
    answers = f"""CREATE TABLE IF NOT EXISTS answers AS -- a connection serves one dataset
        WITH
            clicks AS (
                SELECT query, unnest(ad_ids) AS ad_id
                FROM ({" UNION ALL ".join([nothing, *held_out])})),
            clicked AS (
                SELECT ad_id, folded AS ad FROM ads WHERE ad_id IN (SELECT ad_id FROM clicks))
        SELECT DISTINCT query, ad FROM clicks JOIN clicked USING (ad_id)
        WHERE query IS NOT NULL AND ad IS NOT NULL"""
    run(connection, "reading the held-out clicks", answers)


BOTH_WAYS = "SELECT query AS node, ad AS anchor FROM answers UNION SELECT ad, query FROM answers"
REVERSED = "SELECT ad AS node, query AS anchor FROM answers"
"""Pairs of a train query and an ad whose click is a held-out one reversed."""


def leaking(nodes: str, anchors: str, pairs: str = BOTH_WAYS) -> str:
    """Return the SQL that selects all pairs ``node`` and ``anchor`` that would leak as an edge.

    Call :func:`find_answers` before. ``nodes`` and ``anchors`` are SQL that selects ``id`` and
    ``folded``; ``pairs`` selects folded texts, and by default either can be the held-out query's.
    """
    return f"""SELECT DISTINCT one.id AS node, other.id AS anchor
        FROM ({pairs}) AS answered
        JOIN ({nodes}) AS one ON one.folded = answered.node
        JOIN ({anchors}) AS other ON other.folded = answered.anchor"""


def texts_of(table: str) -> str:
    """Return the SQL that selects ``id``, ``text`` and ``folded`` of a dataset's table."""
    return f"SELECT {schema_of(table).names[0]} AS id, text, folded FROM {name_literal(table)}"
