"""Count the pairs of items that share sessions, and make the strongest pairs edges.

All orders end in an item, whose number is the order of its text, or in a node, so that ties are
broken in one way with any number of threads.
"""

from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import run
from ramen_ray.data.tables.graphs.session_settings import SessionSettings

STRENGTHS = {
    "cosine": "sessions / sqrt(node_sessions::DOUBLE * anchor_sessions)",
    "pmi": "sessions * {num_sessions}::DOUBLE / (node_sessions::DOUBLE * anchor_sessions)",
}
"""What ranks the anchors of a node; PMI is the logarithm of its strength."""


def create_edges(
    connection: DuckDBPyConnection, side: str, settings: SessionSettings, num_sessions: int
) -> None:
    """Create ``{side}_edges``, as in :mod:`~ramen_ray.data.tables.graphs.edge_tables`.

    Nodes are the train queries or the ads; nodes of equal text have equal edges. Anchors are items.
    """
    made = {
        "pairs": _pairs(side, settings),
        "items_sessions": _sessions(side),
        "chosen": _chosen(side, settings, num_sessions),
        f"{side}_edges": _edges(side, settings),
    }
    for table, sql in made.items():
        run(connection, f"making {table} of {side} items", f"CREATE TABLE {table} AS {sql}")
    connection.execute("DROP TABLE pairs; DROP TABLE items_sessions; DROP TABLE chosen")


def _pairs(side: str, settings: SessionSettings) -> str:
    """Select ``one`` < ``other``, and in how many ``sessions`` they are near enough."""
    return f"""
        SELECT one, other, count(*) AS sessions
        FROM (
            SELECT DISTINCT left_.session, left_.{side} AS one, right_.{side} AS other
            FROM events AS left_ JOIN events AS right_
                ON left_.session = right_.session AND left_.{side} < right_.{side}
            WHERE abs(left_.time - right_.time) <= '{settings.window_s}'::DOUBLE)
        GROUP BY one, other HAVING sessions >= {settings.min_support}
    """


def _sessions(side: str) -> str:
    """Select the number of ``sessions`` with each ``item``."""
    return f"""
        SELECT item, count(*) AS sessions
        FROM (SELECT DISTINCT session, {side} AS item FROM events WHERE {side} IS NOT NULL)
        GROUP BY item
    """


def _chosen(side: str, settings: SessionSettings, num_sessions: int) -> str:
    """Select the strongest anchors of each item that is a node, and their weights."""
    strength = STRENGTHS[settings.weight].format(num_sessions=num_sessions)
    weight, above = ("ln(strength)", 1) if settings.weight == "pmi" else ("strength", 0)
    return f"""
        WITH
            both_ways AS (
                SELECT one AS node, other AS anchor, sessions FROM pairs
                UNION ALL SELECT other, one, sessions FROM pairs),
            of_nodes AS (
                SELECT * FROM both_ways WHERE node IN (
                    SELECT item FROM {side}_items WHERE text IN (SELECT text FROM {side}_texts))),
            counted AS (
                SELECT node, anchor, of_nodes.sessions,
                    of_node.sessions AS node_sessions, of_anchor.sessions AS anchor_sessions
                FROM of_nodes
                JOIN items_sessions AS of_node ON of_node.item = node
                JOIN items_sessions AS of_anchor ON of_anchor.item = anchor),
            strongest AS (
                SELECT node, anchor, {strength} AS strength FROM counted
                QUALIFY row_number() OVER (
                    PARTITION BY node ORDER BY strength DESC, anchor) <= {settings.top_k})
        SELECT node, anchor, {weight} AS weight FROM strongest WHERE strength > {above}
    """


def _edges(side: str, settings: SessionSettings) -> str:
    """Select nodes with their text's anchors, of which each keeps the heaviest edges."""
    return f"""
        SELECT texts.node, anchor, 0 AS place, weight
        FROM chosen
        JOIN {side}_items AS items ON items.item = chosen.node
        JOIN {side}_texts AS texts ON texts.text = items.text
        QUALIFY row_number() OVER (
            PARTITION BY anchor ORDER BY weight DESC, texts.node) <= {settings.max_anchor_degree}
    """
