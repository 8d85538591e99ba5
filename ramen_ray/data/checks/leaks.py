"""Edges and clicks that give answers away, or repeat clicks, among the tables in the engine."""

from dataclasses import replace

from ramen_ray.data.checks.loading import Tables
from ramen_ray.data.checks.tables import TableRule, warning
from ramen_ray.data.engine import count, name_literal
from ramen_ray.data.findings import Finding
from ramen_ray.data.leaks import (
    OTHER_END,
    REVERSED,
    create_answers,
    find_leaks,
    find_repeats,
)
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN, schema_of

MANY_REPEATS = 0.1
"""Share of a table's edges that repeat train clicks, from which on it is worth a warning."""


def find_answers(tables: Tables) -> None:
    """Create the table ``answers``: ``query`` and ``ad``, the folded texts of held-out clicks."""
    relations = {table: name_literal(table) for table in tables.columns}
    create_answers(tables.connection, relations, "folded")


def edge_leaks(tables: Tables, table: str) -> list[Finding]:
    """Warn about edges of ``edges/<set>/<side>`` that join a held-out query to its answer.

    Call :func:`find_answers` before.
    """
    _, anchor_set, side = table.split("/")
    nodes, anchors = _folded(NODE_TABLES[side]), _folded(f"anchors/{anchor_set}")
    find_leaks(tables.connection, "leaks", nodes, anchors)
    message = "edge that joins a held-out query to its answer"
    advice = (
        "training sees the answer in the graph; leave these edges out (jobs/graph.py edges does),"
        " or call the figures as published"
    )
    return _broken(tables, _edge_rule(table, message, advice))


def edge_repeats(tables: Tables, table: str) -> list[Finding]:
    """Warn about edges of ``edges/<set>/<side>`` that repeat train clicks, if they are many."""
    _, anchor_set, side = table.split("/")
    others, anchors = _folded(NODE_TABLES[OTHER_END[side]]), _folded(f"anchors/{anchor_set}")
    clicks = f"SELECT query_id, ad_ids FROM {name_literal(TRAIN)}"
    find_repeats(tables.connection, "leaks", side, clicks, others, anchors)
    message = "edge that repeats a train click"
    advice = (
        "the graph says again what training sees, and may get a weight for that alone; compare it"
        " with a graph without these edges (jobs/graph.py edges --protocol unclicked)"
    )
    return _broken(tables, _edge_rule(table, message, advice), MANY_REPEATS)


def _edge_rule(table: str, message: str, advice: str) -> TableRule:
    """Return the rule that edges of ``edges/<set>/<side>`` are not in ``leaks``."""
    _, anchor_set, side = table.split("/")
    found = f"""
        SELECT row, {{'{side}': one.text, 'anchor': other.text}} AS value
        FROM (SELECT rowid AS row, * FROM {name_literal(table)}) AS edge
        JOIN leaks ON node = edge.{side}_id AND anchor = edge.anchor_id
        JOIN {name_literal(NODE_TABLES[side])} AS one ON one.{side}_id = node
        JOIN {name_literal(f"anchors/{anchor_set}")} AS other ON other.anchor_id = anchor
        """
    return warning(table, "anchor_id", message, advice, found)


def click_leaks(tables: Tables) -> list[Finding]:
    """Warn about train clicks that are held-out clicks reversed; see :func:`edge_leaks`."""
    find_leaks(tables.connection, "leaks", _folded(TRAIN), _folded("ads"), REVERSED)
    tables.connection.execute(
        f"""
        CREATE VIEW clicks AS
        SELECT rowid AS row, text, query_id, unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)}
        """
    )
    rule = warning(
        TRAIN,
        "ad_ids",
        "train click that is a held-out click reversed",
        "the answer can be learnt from it; leave these clicks out of the train split"
        " (jobs/ingest.py tables --drop-reversed-clicks does)",
        """
        SELECT row, {'query': clicks.text, 'ad': ads.text} AS value
        FROM clicks JOIN leaks ON query_id = node AND ad_id = anchor JOIN ads USING (ad_id)
        """,
    )
    return _broken(tables, replace(rule, out_of="clicks"))


def _broken(tables: Tables, rule: TableRule, least: float = 0.0) -> list[Finding]:
    """Return what breaks a rule on ``leaks``, if it is a share of ``least``; forget these."""
    are_any = count(tables.connection, "SELECT count(*) FROM leaks")
    found = tables.broken(rule, least) if are_any else []
    tables.drop("leaks")
    return found


def _folded(table: str) -> str:
    """Select ``id`` and ``folded`` of all rows."""
    return f"SELECT {schema_of(table).names[0]} AS id, folded FROM {name_literal(table)}"
