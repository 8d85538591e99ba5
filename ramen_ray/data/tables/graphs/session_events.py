"""Read a log of sessions into the engine: its events, as numbers of the texts that they name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ramen_ray.data.engine import Connection, count, run
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import PLURAL, SIDES
from ramen_ray.data.tables.graphs import nodes
from ramen_ray.data.tables.reading.cells import TimeUnit
from ramen_ray.data.tables.reading.columns import Column, NullWords, id_column, time_column
from ramen_ray.data.tables.reading.loading import UserTable, nearly_known

WHOLE = "session IS NOT NULL AND time IS NOT NULL AND query IS NOT NULL"


@dataclass(frozen=True)
class SessionColumns:
    """Names of the columns in a log of sessions."""

    sessions_session: str = "session_id"
    """The row's session."""
    sessions_time: str = "time"
    """The row's time: a timestamp, ISO 8601 text, or a number of sessions_time_unit."""
    sessions_time_unit: TimeUnit = "s"
    """What numbers in the column of times count since 1970; yyyymmdd are days such as 20260901."""
    sessions_query: str = "query"
    """The query's text, or your id of it."""
    sessions_ad: str | None = "ad_id"
    """The clicked ad, or empty: your id, its text or, if the dataset does not have your ids, its
    number; None if the log has no ads."""


@dataclass(frozen=True)
class SessionLog:
    """A log of search sessions: one row per query searched or ad clicked."""

    sessions: str
    """CSV, TSV, JSON lines or parquet; a file, a folder or a glob."""
    columns: SessionColumns = field(default_factory=SessionColumns)
    """Names of the columns in the log."""
    null_words: NullWords = "leave-out"
    """What to do with rows whose query or ad is a word for nothing, such as NULL or N/A."""


def open_log(log: SessionLog, metadata: Mapping[str, Any]) -> UserTable:
    """Find the log's files; ``metadata`` is the content of the dataset's ``dataset.json``."""
    columns, null_words = log.columns, log.null_words
    unit, flag = columns.sessions_time_unit, "--columns.sessions-time-unit"
    of_log: dict[str, Column] = {
        "session": id_column(columns.sessions_session, null_words),
        "time": time_column(columns.sessions_time, unit, flag),
        "query": nodes.node_names(metadata, "query", columns.sessions_query, null_words),
    }
    if columns.sessions_ad is not None:
        of_log["ad"] = nodes.node_names(metadata, "ad", columns.sessions_ad, null_words)
    optional = {role: replace(column, optional=True) for role, column in of_log.items()}
    return UserTable(log.sessions, optional, skip_bad_rows=True)


def create_events(
    connection: Connection, dataset: Dataset, log: UserTable, max_session_length: int
) -> dict[str, int]:
    """Create ``events``, and the texts that they name; returns counts, also of what is left out.

    * ``events``: ``session``, ``time``, ``query`` and ``ad``, which are items; ``ad`` may be null.
    * ``{side}_items``: ``item``, a number in the order of the texts, and ``text``.

    Rows of validation and test queries are left out entirely: else what the model is measured on
    would shape its graph. So are events of a session after ``max_session_length``.
    """
    ad = "ad" if "ad" in log.columns else "NULL::VARCHAR AS ad"
    log.load(connection, "log", f"SELECT session, time, query, {ad} FROM source")
    log.check()
    for side in SIDES:
        nodes.create_names(connection, dataset, side)
        _name_cells(connection, dataset, side)
        items = f"SELECT DISTINCT item, text FROM {side}_cells WHERE item IS NOT NULL"
        connection.execute(f"CREATE TABLE {side}_items AS {items}")
    return {
        "unreadable lines": log.left_out["unreadable lines"],
        **_count_left_out(connection, dataset),
        **_cut_sessions(connection, max_session_length),
    }


def _name_cells(connection: Connection, dataset: Dataset, side: str) -> None:
    """Create ``{side}_cells``: ``cell``, ``text``, ``item``, ``node``, ``unknown`` (cell or null).

    Text and item are null for what is left out; ``node`` says why. A query's cell that is no id is
    a text, whether or not a query has it.
    """
    cells = f"(SELECT DISTINCT {side} AS name FROM log WHERE {WHOLE} AND {side} IS NOT NULL)"
    found = f"CREATE OR REPLACE TABLE found AS {nodes.named(side, 'name AS cell', cells)}"
    run(connection, f"looking up the log's {side} cells", found)
    is_text = "false"
    if side == "ad":
        nodes.read_numbers(connection, dataset, side, "found")
    else:
        is_text = "node IS NULL"
        if not nodes.has_ids(dataset, side):  # then what was left out is known by its text
            is_text += f" OR node = {nodes.LEFT_OUT_NODE}"
    cells = f"""CREATE TABLE {side}_cells AS
        WITH
            with_texts AS (
                SELECT found.*, CASE WHEN {is_text} THEN cell ELSE texts.text END AS text
                FROM found LEFT JOIN {side}_texts AS texts USING (node)),
            looked_up AS (
                SELECT *,
                    node IS NOT DISTINCT FROM {nodes.HELD_OUT_NODE} OR folded IS NOT NULL AS is_out
                FROM with_texts LEFT JOIN {side}_held_out ON folded = fold(text)),
            kept AS (
                SELECT DISTINCT cell, unknown, CASE WHEN NOT is_out THEN text END AS text,
                    CASE WHEN is_out THEN {nodes.HELD_OUT_NODE} WHEN node < 0 THEN node END AS node
                FROM looked_up)
        SELECT *, CASE WHEN text IS NOT NULL
            THEN dense_rank() OVER (ORDER BY text NULLS LAST) END AS item
        FROM kept"""
    run(connection, f"naming the log's {side} cells", cells)


def _count_left_out(connection: Connection, dataset: Dataset) -> dict[str, int]:
    """Count the rows with empty cells, each once, then the rows and ads that names leave out."""
    kept = f"{WHOLE} AND queries.text IS NOT NULL"
    unknown = f"{kept} AND log.ad IS NOT NULL AND ads.text IS NULL"
    rows = {
        "rows without a session": "session IS NULL",
        "rows without a time": "session IS NOT NULL AND time IS NULL",
        "rows without a query": "session IS NOT NULL AND time IS NOT NULL AND query IS NULL",
        "rows of validation and test queries": f"{WHOLE} AND queries.node = {nodes.HELD_OUT_NODE}",
        "rows of queries that the import left out": (
            f"{WHOLE} AND queries.node = {nodes.LEFT_OUT_NODE} AND queries.text IS NULL"
        ),
        "clicks on unknown ads": unknown,
    }
    columns = ", ".join(f"count(*) FILTER (WHERE {one})" for one in rows.values())
    counts = f"""SELECT {columns} FROM log
        LEFT JOIN query_cells AS queries ON queries.cell = log.query
        LEFT JOIN ad_cells AS ads ON ads.cell = log.ad"""
    (found,) = connection.sql(counts).fetchall()
    return dict(zip(rows, found, strict=True)) | _count_nearly_known(connection, dataset)


def _count_nearly_known(connection: Connection, dataset: Dataset) -> dict[str, int]:
    """Count the rows that name queries and ads that the dataset has in another spelling."""
    counts = {}
    for side in SIDES:
        if not count(connection, f"SELECT count(unknown) FROM {side}_cells"):
            continue  # to look through the log takes time
        unknown = f"""SELECT own.unknown AS name FROM log
            JOIN {side}_cells AS own ON own.cell = log.{side} AND own.unknown IS NOT NULL
            JOIN query_cells AS queries ON queries.cell = log.query AND queries.text IS NOT NULL
            WHERE {WHOLE}"""
        known = nodes.known_names(dataset, side) if side == "ad" else "SELECT name FROM query_names"
        near, example = nearly_known(connection, unknown, known)
        counts[f"rows of unknown {PLURAL[side]} that are known but for {example}"] = near
    return counts


def _cut_sessions(connection: Connection, max_length: int) -> dict[str, int]:
    """Create ``events`` from the log's whole rows; returns how many sessions and cuts there are."""
    named_events = f"""CREATE TABLE named_events AS
        SELECT session, time, queries.item AS query, ads.item AS ad
        FROM log JOIN query_cells AS queries ON queries.cell = log.query
        LEFT JOIN ad_cells AS ads ON ads.cell = log.ad
        WHERE {WHOLE} AND queries.item IS NOT NULL"""
    run(connection, "numbering the log's events", named_events)
    for table in ("log", "found", "query_cells", "ad_cells"):  # to have memory for what follows
        connection.execute(f"DROP TABLE {table}")
    sessions = """CREATE TABLE sessions AS
        SELECT session AS name, row_number() OVER () AS session, count(*) AS length
        FROM named_events GROUP BY session"""
    run(connection, "numbering the sessions", sessions)
    rows = """SELECT sessions.session, time, query, ad
        FROM named_events JOIN sessions ON sessions.name = named_events.session"""
    # only long sessions are sorted
    events = f"""CREATE TABLE events AS
        {rows} WHERE length <= {max_length}
        UNION ALL (
            {rows} WHERE length > {max_length} QUALIFY {max_length} >= row_number() OVER (
                PARTITION BY sessions.session ORDER BY time, query, ad NULLS FIRST))"""
    run(connection, "cutting the sessions", events)
    connection.execute("DROP TABLE named_events")
    cut = f"FROM sessions WHERE length > {max_length}"
    return {
        "sessions": count(connection, "SELECT count(*) FROM sessions"),
        "sessions cut": count(connection, f"SELECT count(*) {cut}"),
        "events dropped": count(connection, f"SELECT sum(length - {max_length}) {cut}"),
    }
