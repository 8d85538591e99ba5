"""Read a log of sessions into the engine: its events, as numbers of the texts that they name."""

from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import count, run
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import SIDES
from ramen_ray.data.tables.graphs.nodes import (
    HELD_OUT_NODE,
    LEFT_OUT_NODE,
    create_names,
    has_ids,
    named,
)
from ramen_ray.data.tables.reading.loading import UserTable

WHOLE = "session IS NOT NULL AND time IS NOT NULL AND query IS NOT NULL"


def create_events(
    connection: DuckDBPyConnection, dataset: Dataset, log: UserTable, max_session_length: int
) -> dict[str, int]:
    """Create ``events``, and the texts that they name in ``query_items`` and ``ad_items``.

    Rows of validation and test queries are left out entirely. A held-out query must not become an
    anchor, and its clicks must not link ads: otherwise the data that the model is measured on would
    shape the graph that it is trained with, and the measured gain would not hold in production.

    * ``events``: ``session``, ``time``, ``query`` and ``ad``, which are items; ``ad`` may be null.
    * ``{side}_items``: ``item``, a number in the order of the texts, and ``text``.

    Events of a session after ``max_session_length`` are dropped. Returns the number of
    ``sessions``, and of what was left out, by reason.
    """
    ad = "ad" if "ad" in log.columns else "NULL::VARCHAR AS ad"
    log.load(connection, "log", f"SELECT session, time, query, {ad} FROM source")
    log.check()
    for side in SIDES:
        create_names(connection, dataset, side)
        _name_cells(connection, dataset, side)
        _number_items(connection, side)
    left_out = {"unreadable lines": log.left_out["unreadable lines"], **_count_left_out(connection)}
    _create_named_events(connection)
    return left_out | _cut_sessions(connection, max_session_length)


def _name_cells(connection: DuckDBPyConnection, dataset: Dataset, side: str) -> None:
    """Create ``{side}_cells``: ``cell``, ``text`` and ``node``; text is null for what is left out.

    A query's cell that is no id is a text, whether or not a query has it. ``node`` is HELD_OUT_NODE
    or LEFT_OUT_NODE for such queries, by their id or by the text that it stands for.
    """
    is_text = "false"
    if side == "query":
        is_text = "node IS NULL"
        if not has_ids(dataset, side):  # then what was left out is known by its text
            is_text += f" OR node = {LEFT_OUT_NODE}"
    cells = f"(SELECT DISTINCT {side} AS name FROM log WHERE {WHOLE} AND {side} IS NOT NULL)"
    run(
        connection,
        f"naming the log's {side} cells",
        f"""
        CREATE TABLE {side}_cells AS
        SELECT DISTINCT cell, CASE WHEN is_out THEN NULL ELSE text END AS text,
            CASE WHEN is_out THEN {HELD_OUT_NODE} WHEN node < 0 THEN node END AS node
        FROM (
            SELECT cell, node, named.text,
                node = {HELD_OUT_NODE} OR held_out.folded IS NOT NULL AS is_out
            FROM (
                SELECT cell, node, CASE WHEN {is_text} THEN cell ELSE texts.text END AS text
                FROM ({named(dataset, side, "name AS cell", cells, numbers=side == "ad")})
                LEFT JOIN {side}_texts AS texts USING (node)) AS named
            LEFT JOIN {side}_held_out AS held_out ON held_out.folded = fold(named.text))
        """,
    )


def _number_items(connection: DuckDBPyConnection, side: str) -> None:
    run(
        connection,
        f"numbering the texts of the log's {side} cells",
        f"""
        CREATE TABLE {side}_items AS
        SELECT row_number() OVER (ORDER BY text) AS item, text
        FROM (SELECT DISTINCT text FROM {side}_cells WHERE text IS NOT NULL)
        """,
    )


def _count_left_out(connection: DuckDBPyConnection) -> dict[str, int]:
    """Count the rows with empty cells, each once, then the rows and ads that names leave out."""
    kept = f"{WHOLE} AND queries.text IS NOT NULL"
    unknown = f"{kept} AND log.ad IS NOT NULL AND ads.text IS NULL"
    rows = {
        "rows without a session": "session IS NULL",
        "rows without a time": "session IS NOT NULL AND time IS NULL",
        "rows without a query": "session IS NOT NULL AND time IS NOT NULL AND query IS NULL",
        "rows of validation and test queries": f"{WHOLE} AND queries.node = {HELD_OUT_NODE}",
        "rows of queries that the import left out": (
            f"{WHOLE} AND queries.node = {LEFT_OUT_NODE} AND queries.text IS NULL"
        ),
        "clicks on unknown ads": unknown,
        "of them on ids such as 12.0, as pandas writes 12 in columns with empty cells": (
            f"{unknown} AND regexp_full_match(log.ad, '[0-9]+[.]0')"
        ),
    }
    columns = ", ".join(f"count(*) FILTER (WHERE {one})" for one in rows.values())
    (found,) = connection.sql(
        f"""
        SELECT {columns} FROM log
        LEFT JOIN query_cells AS queries ON queries.cell = log.query
        LEFT JOIN ad_cells AS ads ON ads.cell = log.ad
        """
    ).fetchall()
    return dict(zip(rows, found, strict=True))


def _create_named_events(connection: DuckDBPyConnection) -> None:
    """Create ``named_events`` from the log's whole rows, which are dropped."""
    for side in SIDES:
        run(
            connection,
            f"indexing the log's {side} cells",
            f"""
            CREATE TABLE {side}_codes AS
            SELECT cell, item FROM {side}_cells JOIN {side}_items USING (text)
            """,
        )
    run(
        connection,
        "numbering the log's events",
        f"""
        CREATE TABLE named_events AS
        SELECT session, time, queries.item AS query, ads.item AS ad
        FROM log JOIN query_codes AS queries ON queries.cell = log.query
        LEFT JOIN ad_codes AS ads ON ads.cell = log.ad
        WHERE {WHOLE}
        """,
    )
    for table in ("log", "query_cells", "ad_cells", "query_codes", "ad_codes"):
        connection.execute(f"DROP TABLE {table}")


def _cut_sessions(connection: DuckDBPyConnection, max_length: int) -> dict[str, int]:
    """Create ``events``, of sessions that are cut; returns how many are, and are not."""
    run(
        connection,
        "numbering the sessions",
        """
        CREATE TABLE sessions AS
        SELECT session AS name, row_number() OVER () AS session, count(*) AS length
        FROM named_events GROUP BY session
        """,
    )
    rows = """
        SELECT sessions.session, time, query, ad
        FROM named_events JOIN sessions ON sessions.name = named_events.session
    """
    run(
        connection,
        "cutting the sessions",
        f"""
        CREATE TABLE events AS
        {rows} WHERE length <= {max_length}
        UNION ALL
        (
            {rows} WHERE length > {max_length}
            QUALIFY row_number() OVER (
                PARTITION BY sessions.session ORDER BY time, query, ad NULLS FIRST
            ) <= {max_length}
        )
        """,
    )
    connection.execute("DROP TABLE named_events")
    cut = f"FROM sessions WHERE length > {max_length}"
    return {
        "sessions": count(connection, "SELECT count(*) FROM sessions"),
        "sessions cut": count(connection, f"SELECT count(*) {cut}"),
        "events dropped": count(connection, f"SELECT sum(length - {max_length}) {cut}"),
    }
