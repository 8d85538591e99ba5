"""Read a log of sessions into the engine: its events, as numbers of the texts that they name."""

from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import count, run
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.tables.graphs.nodes import (
    HELD_OUT_NODE,
    LEFT_OUT_NODE,
    create_ids,
    create_texts,
    has_ids,
    number_of,
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

    Args:
        connection: the engine.
        dataset: the dataset directory.
        log: the log, whose roles are ``session``, ``time``, ``query`` and, if it has ads, ``ad``.
        max_session_length: later events of a session are dropped.

    Returns:
        the number of ``sessions``, and of what was left out, by reason.
    """
    for side in ("query", "ad"):
        create_ids(connection, dataset, side)
        create_texts(connection, dataset, side)
    ad = "ad" if "ad" in log.columns else "NULL::VARCHAR AS ad"
    log.load(connection, "log", f"SELECT session, time, query, {ad} FROM source")
    log.check()
    _name_queries(connection, dataset)
    _name_ads(connection, dataset)
    for side in ("query", "ad"):
        _number_items(connection, side)
    left_out = {
        "unreadable lines": log.left_out["unreadable lines"],
        **_count_bad_rows(connection),
        **_count_left_out(connection),
    }
    _create_named_events(connection)
    return left_out | _cut_sessions(connection, max_session_length)


def _name_queries(connection: DuckDBPyConnection, dataset: Dataset) -> None:
    """Create ``query_cells``: ``cell``, ``text`` and ``node``; text is null for what is left out.

    ``node`` is HELD_OUT_NODE or LEFT_OUT_NODE there. A cell that is no id is a text, whether or not
    a query has it.
    """
    is_text = "ids.node IS NULL"
    if not has_ids(dataset, "query"):  # then what was left out is known by its text
        is_text += f" OR ids.node = {LEFT_OUT_NODE}"
    run(
        connection,
        "naming the log's queries",
        f"""
        CREATE TABLE query_cells AS
        SELECT cell,
            CASE WHEN held_out.folded IS NULL THEN named.text END AS text,
            CASE WHEN held_out.folded IS NULL THEN node ELSE {HELD_OUT_NODE} END AS node
        FROM (
            SELECT cell, ids.node, CASE WHEN {is_text} THEN cell ELSE texts.text END AS text
            FROM (SELECT DISTINCT query AS cell FROM log WHERE {WHOLE})
            LEFT JOIN query_ids AS ids ON ids.name = cell
            LEFT JOIN query_texts AS texts ON texts.node = ids.node) AS named
        LEFT JOIN query_held_out AS held_out ON held_out.folded = fold(named.text)
        """,
    )


def _name_ads(connection: DuckDBPyConnection, dataset: Dataset) -> None:
    """Create ``ad_cells``: ``cell`` and ``text``, which is null for unknown ads."""
    run(
        connection,
        "naming the log's ads",
        f"""
        CREATE TABLE ad_cells AS
        SELECT cell, coalesce(with_id.text, with_text.text, with_number.text) AS text
        FROM (SELECT DISTINCT ad AS cell FROM log WHERE {WHOLE} AND ad IS NOT NULL)
        LEFT JOIN ad_ids AS ids ON ids.name = cell
        LEFT JOIN ad_texts AS with_id ON with_id.node = ids.node
        LEFT JOIN (SELECT DISTINCT text FROM ad_texts) AS with_text
            ON with_text.text = CASE WHEN ids.node IS NULL THEN cell END
        LEFT JOIN ad_texts AS with_number
            ON with_number.node = CASE WHEN ids.node IS NULL
                                  THEN {number_of("cell", dataset, "ad")} END
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


def _count_bad_rows(connection: DuckDBPyConnection) -> dict[str, int]:
    """Count the log's rows with empty cells, each once."""
    without = {
        "rows without a session": "session IS NULL",
        "rows without a time": "session IS NOT NULL AND time IS NULL",
        "rows without a query": "session IS NOT NULL AND time IS NOT NULL AND query IS NULL",
    }
    return {
        what: count(connection, f"SELECT count(*) FROM log WHERE {rows}")
        for what, rows in without.items()
    }


def _count_left_out(connection: DuckDBPyConnection) -> dict[str, int]:
    """Count the whole rows of queries that are left out, and unknown ads in the other rows."""
    rows = f"""
        FROM log JOIN query_cells AS queries ON queries.cell = log.query
        LEFT JOIN ad_cells AS ads ON ads.cell = log.ad
        WHERE {WHOLE}
    """
    wanted = {
        "rows of validation and test queries": f"queries.node = {HELD_OUT_NODE}",
        "rows of queries that the import left out": (
            f"queries.node = {LEFT_OUT_NODE} AND queries.text IS NULL"
        ),
        "clicks on unknown ads": (
            "queries.text IS NOT NULL AND log.ad IS NOT NULL AND ads.text IS NULL"
        ),
    }
    columns = ", ".join(f"count(*) FILTER (WHERE {one})" for one in wanted.values())
    (found,) = connection.sql(f"SELECT {columns} {rows}").fetchall()
    return dict(zip(wanted, found, strict=True))


def _create_named_events(connection: DuckDBPyConnection) -> None:
    """Create ``named_events`` from the log's whole rows, which are dropped."""
    for side in ("query", "ad"):
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
