"""Edges and clicks that give held-out answers away, among the tables in the engine."""

from dataclasses import replace

from ramen_ray.data.checks.loading import Tables
from ramen_ray.data.checks.tables import TableRule, warning
from ramen_ray.data.engine import count, name_literal
from ramen_ray.data.findings import Finding
from ramen_ray.data.leaks import BOTH_WAYS, REVERSED, create_answers, find_leaks
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN, schema_of


def find_answers(tables: Tables) -> None:
    """Create the table ``answers``: ``query`` and ``ad``, the folded texts of held-out clicks."""
    relations = {table: name_literal(table) for table in tables.columns}
    create_answers(tables.connection, relations, "folded")


def edge_leaks(tables: Tables, table: str) -> list[Finding]:
    """Warn about edges of ``edges/<set>/<side>`` that join a held-out query to its answer.

    Args:
        tables: those in the engine; :func:`find_answers` was called.
        table: the edges, at train queries or ads.
    """
    _, anchor_set, side = table.split("/")
    nodes, anchors = NODE_TABLES[side], f"anchors/{anchor_set}"
    find_leaks(tables.connection, "leaks", _candidates(nodes), _candidates(anchors), BOTH_WAYS)
    rule = warning(
        table,
        "anchor_id",
        "edge that joins a held-out query to its answer",
        "training sees the answer in the graph; leave these edges out (jobs/graph.py edges does),"
        " or call the figures as published",
        f"""
        SELECT row, {{'{side}': one.text, 'anchor': other.text}} AS value
        FROM (SELECT rowid AS row, * FROM {name_literal(table)}) AS edge
        JOIN leaks ON node = edge.{side}_id AND anchor = edge.anchor_id
        JOIN {name_literal(nodes)} AS one ON one.{side}_id = node
        JOIN {name_literal(anchors)} AS other ON other.anchor_id = anchor
        """,
    )
    return _broken(tables, rule)


def click_leaks(tables: Tables) -> list[Finding]:
    """Warn about train clicks that are held-out clicks reversed; see :func:`edge_leaks`."""
    ends = _candidates(TRAIN), _candidates("ads")
    find_leaks(tables.connection, "leaks", *ends, REVERSED)
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


def _broken(tables: Tables, rule: TableRule) -> list[Finding]:
    """Return what breaks a rule on ``leaks``, and forget these."""
    found = tables.broken(rule) if count(tables.connection, "SELECT count(*) FROM leaks") else []
    tables.drop("leaks")
    return found


def _candidates(table: str) -> str:
    """Select ``id`` and ``text`` of the rows whose folded text is in an answer."""
    return f"""
        SELECT {schema_of(table).names[0]} AS id, text FROM {name_literal(table)}
        WHERE folded IN (SELECT query FROM answers UNION SELECT ad FROM answers)
        """
