"""Read a log of sessions into the engine: its events, as numbers of the texts that they name."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ramen_ray.data.engine import Connection, count, run
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.schemas import SIDES
from ramen_ray.data.tables.graphs import nodes
from ramen_ray.data.tables.reading.cells import TimeUnit, as_seconds
from ramen_ray.data.tables.reading.columns import (
    Column,
    NullWords,
    id_column,
    time_column,
    weight_column,
)
from ramen_ray.data.tables.reading.files import find_files, pinned
from ramen_ray.data.tables.reading.loading import UserTable
from ramen_ray.errors import redacted

logger = logging.getLogger(__name__)


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
    sessions_weight: str | None = None
    """Clicks of a row that names an ad, such as a count; rows of 0 are impressions, which are left
    out. Default the clicks' column of the import, if the log has it; without it every row
    counts 1."""


@dataclass(frozen=True)
class SessionLog:
    """A log of search sessions: one row per query searched or ad clicked."""

    sessions: str
    """CSV, TSV, JSON lines or parquet; a file, a folder or a glob."""
    columns: SessionColumns = field(default_factory=SessionColumns)
    """Names of the columns in the log."""
    null_words: NullWords = "leave-out"
    """What to do with rows whose query or ad is a word for nothing, such as NULL or N/A."""
    max_clicks_per_query: float | None = None
    """Queries with a larger sum of click weights in the log are left out, as bots' are. Default
    that of the import."""
    encoding: str = "utf-8"
    """Encoding of text files, such as windows-1252."""

    def __post_init__(self) -> None:
        """Refuse a limit that is no number."""
        if not 0 <= (most := self.max_clicks_per_query or 0.0) < np.inf:
            raise DatasetError(f"max_clicks_per_query is {most:g}; it must be a number from 0 on")


def by_import_rules(log: SessionLog, metadata: Mapping[str, Any]) -> SessionLog:
    """Return the log with the rules of the import for what it does not say itself."""
    log = pinned(log, "sessions")
    imported = metadata.get("imported", {})
    columns = log.columns
    most = log.max_clicks_per_query
    weight: str | None = imported.get("columns", {}).get("clicks_weight")
    if weight is None or columns.sessions_weight is not None:
        weight = columns.sessions_weight
    elif all(weight not in file.header for file in find_files(log.sessions, [], "", log.encoding)):
        logger.info(
            "%s has no column %r, as the import's clicks: each row that names an ad is a click (if"
            " some are impressions, set --columns.sessions-weight)",
            redacted(log.sessions),
            weight,
        )
        weight = None
    return replace(
        log,
        columns=replace(columns, sessions_weight=weight),
        max_clicks_per_query=imported.get("max_clicks_per_query") if most is None else most,
    )


def open_log(log: SessionLog, metadata: Mapping[str, Any]) -> UserTable:
    """Find the log's files; ``metadata`` is the content of the dataset's ``dataset.json``."""
    columns = log.columns
    null_words = log.null_words
    unit = columns.sessions_time_unit
    flag = "--columns.sessions-time-unit"
    of_log: dict[str, Column] = {
        "session": id_column(columns.sessions_session, null_words),
        "time": time_column(columns.sessions_time, unit, flag),
        "query": nodes.node_names(metadata, "query", columns.sessions_query, null_words),
    }
    if columns.sessions_ad is not None:
        of_log["ad"] = nodes.node_names(metadata, "ad", columns.sessions_ad, null_words)
    if weight := columns.sessions_weight:
        of_log["weight"] = replace(weight_column(weight, zeros="impressions"), doubts=())
    optional = {role: replace(column, optional=True) for role, column in of_log.items()}
    return UserTable(log.sessions, optional, True, log.encoding)


def create_events(
    connection: Connection,
    dataset: Dataset,
    log: UserTable,
    max_length: int,
    max_gap_s: float,
    max_clicks_per_query: float | None = None,
) -> dict[str, int]:
    """Create ``events``, and the texts that they name; returns counts, also of what is left out.

    * ``events``: ``session``, ``time``, ``query`` and ``ad``, which are items; ``ad`` may be null.
    * ``{side}_items``: ``item``, a number in the order of the texts, and ``text``.

    What the model is measured on must not shape its graph. So rows of validation and test queries
    are left out entirely; where the dataset says from when on queries are held out, so are all rows
    from then on, and queries that are trained on, too, keep those before.
    """
    held_out_from = _held_out_from(dataset)
    counts = _load(connection, log, held_out_from)
    for side in SIDES:
        nodes.create_names(connection, dataset, side)
        _name_cells(connection, dataset, side, held_out_from)
        items = f"SELECT DISTINCT item, text FROM {side}_cells WHERE item IS NOT NULL"
        connection.execute(f"CREATE TABLE {side}_items AS {items}")
    counts |= _count_left_out(connection, dataset)
    _name_events(connection)
    if max_clicks_per_query is not None:
        counts |= _leave_bots_out(connection, max_clicks_per_query)
    return counts | _cut_sessions(connection, max_length, max_gap_s)


def _held_out_from(dataset: Dataset) -> float | None:
    """Return the time from which on clicks are held out, in seconds since 1970, if it is known."""
    time = dataset.metadata.get("held_out_from")
    if time is None:
        return None
    seconds, bad = as_seconds(pa.chunked_array([[str(time)]]))
    if bad.any():
        raise DatasetError(f"{dataset.path}/dataset.json: held_out_from is no time: {time!r}")
    return float(seconds[0])


def _load(connection: Connection, log: UserTable, held_out_from: float | None) -> dict[str, int]:
    """Create ``log`` from the rows that may be used; counts the others, each by one reason."""
    reasons = {
        "rows without a session": "session IS NULL",
        "rows without a time": "time IS NULL",
        "rows without a query": "query IS NULL",
        "rows with an ad, but without a weight": "ad IS NOT NULL AND weight IS NULL",
        "impressions, rows of 0 clicks": "ad IS NOT NULL AND weight = 0",
        "rows of the time that is held out": f"time >= '{held_out_from or np.inf}'::DOUBLE",
    }
    ad = "ad" if "ad" in log.columns else "NULL::VARCHAR AS ad"
    weight = "weight" if "weight" in log.columns else "1.0::DOUBLE AS weight"
    cases = " ".join(f"WHEN {row} THEN {number}" for number, row in enumerate(reasons.values()))
    log.load(
        connection,
        "log",
        f"""SELECT *, (CASE {cases} END)::TINYINT AS reason
        FROM (SELECT session, time, query, {ad}, {weight} FROM source)""",
    )
    log.check()
    counted = "SELECT reason, count(*) FROM log WHERE reason IS NOT NULL GROUP BY reason"
    number_of = dict(connection.sql(counted).fetchall())
    connection.execute("DELETE FROM log WHERE reason IS NOT NULL")
    counts = {what: number_of.get(number, 0) for number, what in enumerate(reasons)}
    return {"unreadable lines": log.left_out["unreadable lines"]} | counts


def _name_cells(
    connection: Connection, dataset: Dataset, side: str, held_out_from: float | None
) -> None:
    """Create ``{side}_cells``: ``cell``, ``text``, ``item``, ``node``, ``unknown`` (cell or null).

    Text and item are null for what is left out; ``node`` says why, and ``is_trained`` if a held-out
    query is a train query, too. A query's cell that is no id is a text, whether or not a query has
    it.
    """
    cells = f"(SELECT DISTINCT {side} AS name FROM log WHERE {side} IS NOT NULL)"
    look_up = f"CREATE OR REPLACE TABLE found AS {nodes.named(side, 'name AS cell', cells)}"
    run(connection, f"looking up the log's {side} cells", look_up)
    is_text = "false"
    if side == "ad":
        nodes.read_numbers(connection, dataset, side, "found")
    else:
        is_text = "node IS NULL"
        if not nodes.has_ids(dataset, side):  # then what was left out is known by its text
            is_text += f" OR node = {nodes.LEFT_OUT_NODE}"
    has_text = "folded IS NOT NULL"
    if held_out_from is not None:  # then time says which rows of train queries are held out
        has_text += " AND coalesce(node, -1) < 0"
    cells = f"""CREATE TABLE {side}_cells AS
        WITH
            with_texts AS (
                SELECT found.*, CASE WHEN {is_text} THEN cell ELSE texts.text END AS text
                FROM found LEFT JOIN {side}_texts AS texts USING (node)),
            looked_up AS (
                SELECT *,
                    node IS NOT DISTINCT FROM {nodes.HELD_OUT_NODE} OR {has_text} AS is_out
                FROM with_texts LEFT JOIN {side}_held_out ON folded = fold(text)),
            kept AS (
                SELECT DISTINCT cell, unknown, CASE WHEN NOT is_out THEN text END AS text,
                    is_out AND coalesce(node, -1) >= 0 AS is_trained,
                    CASE WHEN is_out THEN {nodes.HELD_OUT_NODE} WHEN node < 0 THEN node END AS node
                FROM looked_up)
        SELECT *, CASE WHEN text IS NOT NULL
            THEN dense_rank() OVER (ORDER BY text NULLS LAST) END AS item
        FROM kept"""
    run(connection, f"naming the log's {side} cells", cells)


def _count_left_out(connection: Connection, dataset: Dataset) -> dict[str, int]:
    """Count the rows and ads that names leave out."""
    is_held_out = f"queries.node = {nodes.HELD_OUT_NODE}"
    trained = "rows of validation and test queries that are trained on, too"
    rows = {
        "rows of validation and test queries": f"{is_held_out} AND NOT queries.is_trained",
        trained: f"{is_held_out} AND queries.is_trained",
        "rows of queries that the import left out": (
            f"queries.node = {nodes.LEFT_OUT_NODE} AND queries.text IS NULL"
        ),
        "clicks on unknown ads": (
            "queries.text IS NOT NULL AND log.ad IS NOT NULL AND ads.text IS NULL"
        ),
    }
    columns = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in rows.values())
    (numbers,) = connection.sql(f"SELECT {columns} {_NAMED_LOG}").fetchall()
    counts = dict(zip(rows, numbers, strict=True))
    if counts[trained]:
        logger.warning(
            "%s does not say from when on queries are held out (held_out_from in dataset.json), so"
            " train queries that are held out later lose all their rows; a new import by time"
            " says it",
            dataset.path,
        )
    return counts


_NAMED_LOG = """FROM log
    LEFT JOIN query_cells AS queries ON queries.cell = log.query
    LEFT JOIN ad_cells AS ads ON ads.cell = log.ad"""


def _name_events(connection: Connection) -> None:
    """Create ``named_events`` from the log: ``session``, ``time``, ``weight``, and two items."""
    named_events = f"""CREATE TABLE named_events AS
        SELECT session, time, weight, queries.item AS query, ads.item AS ad {_NAMED_LOG}
        WHERE queries.item IS NOT NULL"""
    run(connection, "numbering the log's events", named_events)
    for table in ("log", "found", "query_cells", "ad_cells"):  # to have memory for what follows
        connection.execute(f"DROP TABLE {table}")


def _leave_bots_out(connection: Connection, most: float) -> dict[str, int]:
    """Delete the events of queries with more clicks, as an import does; returns how many."""
    busy = f"""SELECT query FROM named_events WHERE ad IS NOT NULL
        GROUP BY query HAVING sum(weight)::FLOAT > least({most!r}, 1e38)::FLOAT"""
    connection.execute(f"DELETE FROM named_events WHERE query IN ({busy})")
    (number,) = connection.fetchall()[0]
    return {f"rows of queries with more than {most:g} clicks": number}


def _cut_sessions(connection: Connection, length: int, max_gap_s: float) -> dict[str, int]:
    """Create ``events``; returns how many sessions and cuts there are.

    After a gap in time a session's id stands for another session: many logs number sessions anew
    each day.
    """
    gap = f"'{max_gap_s}'::DOUBLE"
    # only what lasts long is sorted
    visits = f"""CREATE TABLE visits AS
        WITH lasting AS (
            SELECT session FROM named_events GROUP BY session HAVING max(time) - min(time) > {gap})
        SELECT *, 0 AS visit FROM named_events ANTI JOIN lasting USING (session)
        UNION ALL
        SELECT * EXCLUDE (begins), sum(begins) OVER (PARTITION BY session ORDER BY time) AS visit
        FROM (
            SELECT *,
                (time - lag(time, 1, time) OVER (PARTITION BY session ORDER BY time) > {gap})::INT
                    AS begins
            FROM named_events SEMI JOIN lasting USING (session))"""
    run(connection, "looking for gaps in sessions", visits)
    connection.execute("DROP TABLE named_events")
    sessions = """CREATE TABLE sessions AS
        SELECT session AS name, visit, row_number() OVER () AS session, count(*) AS length
        FROM visits GROUP BY session, visit"""
    run(connection, "numbering the sessions", sessions)
    rows = """SELECT sessions.session, time, query, ad FROM visits
        JOIN sessions ON sessions.name = visits.session AND sessions.visit = visits.visit"""
    # only long sessions are sorted
    events = f"""CREATE TABLE events AS
        {rows} WHERE length <= {length}
        UNION ALL (
            {rows} WHERE length > {length} QUALIFY {length} >= row_number() OVER (
                PARTITION BY sessions.session ORDER BY time, query, ad NULLS FIRST))"""
    run(connection, "cutting the sessions", events)
    connection.execute("DROP TABLE visits")
    cut = f"FROM sessions WHERE length > {length}"
    more = count(connection, "SELECT count(*) - count(DISTINCT name) FROM sessions")
    return {
        "sessions": count(connection, "SELECT count(*) FROM sessions"),
        f"of them after a gap of more than {max_gap_s:g} s in their id": more,
        "sessions cut": count(connection, f"SELECT count(*) {cut}"),
        "events dropped": count(connection, f"SELECT sum(length - {length}) {cut}"),
    }
