"""Rules about edges and clicks that give answers away, or repeat clicks.

Their functions make the table ``leaks`` of :mod:`ramen_ray.data.leaks`, which the rules then read.
"""

from dataclasses import replace

from ramen_ray.data.checks.loading import Tables, warning
from ramen_ray.data.engine import name_literal
from ramen_ray.data.findings import Finding
from ramen_ray.data.leaks import REVERSED, find_leaks, find_repeats, texts_of
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN

MANY_REPEATS = 0.1
"""Share of a table's edges that repeat train clicks, from which on it is worth a warning."""


def edge_leaks(tables: Tables, table: str) -> list[Finding]:
    """Warn about edges of ``edges/<set>/<side>`` that join a held-out query to its answer.

    Warn also about those that repeat train clicks, if they are many. Call
    :func:`~ramen_ray.data.leaks.find_answers` before.
    """
    _, anchor_set, side = table.split("/")
    nodes, anchors = name_literal(NODE_TABLES[side]), name_literal(f"anchors/{anchor_set}")
    in_leaks = f"""
        SELECT row, {{'{side}': one.text, 'anchor': other.text}} AS value
        FROM this JOIN leaks ON node = {side}_id AND anchor = anchor_id
        JOIN {nodes} AS one USING ({side}_id) JOIN {anchors} AS other USING (anchor_id)
        """
    joins_answers = warning(
        "anchor_id",
        "edge that joins a held-out query to its answer",
        "training sees the answer in the graph; leave these edges out (jobs/graph.py edges does),"
        " or call the figures as published",
        in_leaks,
    )
    repeats_clicks = warning(
        "anchor_id",
        "edge that repeats a train click",
        "the graph says again what training sees, and may get a weight for that alone; compare it"
        " with a graph without these edges (jobs/graph.py edges --protocol unclicked)",
        in_leaks,
    )
    anchor_texts = texts_of(f"anchors/{anchor_set}")
    find_leaks(tables.connection, texts_of(NODE_TABLES[side]), anchor_texts)
    found = tables.broken(table, [joins_answers])
    find_repeats(tables.connection, side, anchor_texts)
    return found + tables.broken(table, [replace(repeats_clicks, least=MANY_REPEATS)])


def click_leaks(tables: Tables) -> list[Finding]:
    """Warn about train clicks that are held-out clicks reversed; see :func:`edge_leaks`."""
    find_leaks(tables.connection, texts_of(TRAIN), texts_of("ads"), REVERSED)
    rule = warning(
        "ad_ids",
        "train click that is a held-out click reversed",
        "the answer can be learnt from it; leave these clicks out of the train split"
        " (jobs/ingest.py tables --drop-reversed-clicks does)",
        """
        SELECT row, {'query': clicks.text, 'ad': ads.text} AS value
        FROM (SELECT row, text, query_id, unnest(ad_ids) AS ad_id FROM this) AS clicks
        JOIN leaks ON query_id = node AND ad_id = anchor JOIN ads USING (ad_id)
        """,
    )
    return tables.broken(TRAIN, [replace(rule, whole="sum(len(ad_ids))")])
