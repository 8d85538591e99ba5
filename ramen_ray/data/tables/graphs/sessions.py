"""Co-session anchor sets: queries searched, and ads clicked, in the same sessions of a log."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

from duckdb import DuckDBPyConnection

from ramen_ray.data.checks import check
from ramen_ray.data.engine import engine
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.tables.graphs.anchor_sets import (
    check_name,
    folder_beside,
    made_by,
    nodes_without_edges,
    put_in_place,
    remove_anchor_set,
)
from ramen_ray.data.tables.graphs.edge_tables import WrittenEdges, drop_leaks, write_edges
from ramen_ray.data.tables.graphs.nodes import node_names
from ramen_ray.data.tables.graphs.session_events import create_events
from ramen_ray.data.tables.graphs.session_pairs import create_edges
from ramen_ray.data.tables.graphs.session_settings import SessionLog, SessionSettings
from ramen_ray.data.tables.reading.columns import Column, id_column, time_column
from ramen_ray.data.tables.reading.loading import UserTable


def add_co_session(
    dataset_path: Path,
    log: SessionLog,
    settings: SessionSettings,
    replace: bool = False,
    memory: str | None = None,
) -> dict[str, int]:
    """Add the anchor sets of train queries and of ads, by a log of sessions, to a dataset.

    A set that gets no edges is left out; with ``replace``, an old one is removed. ``memory`` is
    what tables may take; see :func:`~ramen_ray.data.engine.engine`. Returns counts of rows written,
    of nodes without edges, and of what was left out of the log.

    Raises:
        DatasetError: dataset or log is not usable, a name is taken, or there would be no edges.
    """
    dataset = Dataset(dataset_path)
    sets = {"query": settings.query_set, "ad": settings.ad_set}
    for name in sets.values():
        check_name(dataset, name, replace)
    check(dataset)
    table = open_log(log, dataset.metadata)
    made = made_by("co-session", log, settings)
    with ExitStack() as stack:
        folders = {
            side: stack.enter_context(folder_beside(dataset, name)) for side, name in sets.items()
        }
        connection = stack.enter_context(engine(folders["query"], memory))
        summary = create_events(connection, dataset, table, settings.max_session_length)
        written = {}
        for side, name in sets.items():
            create_edges(connection, side, settings, summary["sessions"])
            writer = DatasetWriter(folders[side])
            found = _write_set(connection, dataset, side, settings, writer)
            summary |= {f"edges/{name}/{side}": 0} | found.counts | found.num_rows
            if found.num_rows:
                summary |= nodes_without_edges(dataset, found.linked)
                written[side] = found.num_rows
        if not written:
            left_out = ", ".join(f"{count} {what}" for what, count in summary.items() if count)
            raise DatasetError(
                f"{log.sessions} gives no edges; lower min_support? Found: {left_out or 'nothing'}"
            )
        for side, num_rows in written.items():
            put_in_place(folders[side], dataset, sets[side], made, num_rows, replace)
    if replace:
        for side in sets.keys() - written:
            remove_anchor_set(dataset.path, sets[side])
    return summary


def open_log(log: SessionLog, metadata: Mapping[str, Any]) -> UserTable:
    """Find the log's files; ``metadata`` is the content of the dataset's ``dataset.json``."""
    columns, null_words = log.columns, log.null_words
    unit, flag = columns.sessions_time_unit, "--columns.sessions-time-unit"
    of_log: dict[str, Column] = {
        "session": id_column(columns.sessions_session, null_words),
        "time": time_column(columns.sessions_time, unit, flag),
        "query": node_names(metadata, "query", columns.sessions_query, null_words),
    }
    if columns.sessions_ad is not None:
        of_log["ad"] = node_names(metadata, "ad", columns.sessions_ad, null_words)
    optional = {role: with_changes(column, optional=True) for role, column in of_log.items()}
    return UserTable(log.sessions, optional, skip_bad_rows=True)


def _write_set(
    connection: DuckDBPyConnection,
    dataset: Dataset,
    side: str,
    settings: SessionSettings,
    writer: DatasetWriter,
) -> WrittenEdges:
    """Write the edges of one side and their anchors, which are the items of the log."""
    connection.execute(f"CREATE VIEW anchors AS SELECT item AS id, text FROM {side}_items")
    dropped = drop_leaks(connection, dataset, [side], settings.protocol)
    name = settings.query_set if side == "query" else settings.ad_set
    found = write_edges(connection, name, [side], writer)
    connection.execute("DROP VIEW anchors; DROP TABLE IF EXISTS numbered")
    return with_changes(found, counts=dropped)
