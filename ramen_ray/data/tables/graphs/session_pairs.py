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

    Args:
        connection: the engine.
        side: ``query`` or ``ad``.
        settings: which pairs become edges, and their weights.
        num_sessions: number of all sessions.
    """
    _count_pairs(connection, side, settings)
    _count_sessions(connection, side)
    _choose_anchors(connection, side, settings, num_sessions)
    _choose_nodes(connection, side, settings)
    for table in ("pairs", "items_sessions", "chosen"):
        connection.execute(f"DROP TABLE {table}")


def _count_pairs(connection: DuckDBPyConnection, side: str, settings: SessionSettings) -> None:
    """Create ``pairs``: ``one`` < ``other``, and in how many ``sessions`` they are near enough."""
    run(
        connection,
        f"counting the pairs of {side} items",
        f"""
        CREATE TABLE pairs AS
        SELECT one, other, count(*) AS sessions
        FROM (
            SELECT DISTINCT left_.session, left_.{side} AS one, right_.{side} AS other
            FROM events AS left_ JOIN events AS right_
                ON left_.session = right_.session AND left_.{side} < right_.{side}
            WHERE abs(left_.time - right_.time) <= '{settings.window_s}'::DOUBLE)
        GROUP BY one, other HAVING sessions >= {settings.min_support}
        """,
    )


def _count_sessions(connection: DuckDBPyConnection, side: str) -> None:
    """Create ``items_sessions``: the number of ``sessions`` with each ``item``."""
    run(
        connection,
        f"counting the sessions of {side} items",
        f"""
        CREATE TABLE items_sessions AS
        SELECT item, count(*) AS sessions
        FROM (SELECT DISTINCT session, {side} AS item FROM events WHERE {side} IS NOT NULL)
        GROUP BY item
        """,
    )


def _choose_anchors(
    connection: DuckDBPyConnection, side: str, settings: SessionSettings, num_sessions: int
) -> None:
    """Create ``chosen``: the strongest anchors of each item that is a node, and their weights."""
    strength = STRENGTHS[settings.weight].format(num_sessions=num_sessions)
    weight, above = ("ln(strength)", 1) if settings.weight == "pmi" else ("strength", 0)
    run(
        connection,
        f"choosing the anchors of {side} nodes",
        f"""
        CREATE TABLE chosen AS
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
        """,
    )


def _choose_nodes(connection: DuckDBPyConnection, side: str, settings: SessionSettings) -> None:
    """Create ``{side}_edges``: nodes get their text's anchors, anchors keep the heaviest edges."""
    run(
        connection,
        f"weighing {side} edges",
        f"""
        CREATE TABLE {side}_edges AS
        SELECT texts.node, anchor, 0 AS place, weight
        FROM chosen
        JOIN {side}_items AS items ON items.item = chosen.node
        JOIN {side}_texts AS texts ON texts.text = items.text
        QUALIFY row_number() OVER (
            PARTITION BY anchor ORDER BY weight DESC, texts.node) <= {settings.max_anchor_degree}
        """,
    )
