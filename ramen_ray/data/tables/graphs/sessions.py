"""Co-session anchor sets: queries searched, and ads clicked, in the same sessions of a log."""

from contextlib import ExitStack
from dataclasses import replace as with_changes
from pathlib import Path

from duckdb import DuckDBPyConnection

from ramen_ray.data.checks import check
from ramen_ray.data.engine import engine
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.tables.graphs.anchor_sets import (
    WrittenEdges,
    check_name,
    drop_leaks,
    folder_beside,
    made_by,
    nodes_without_edges,
    put_in_place,
    remove_anchor_set,
    write_edges,
)
from ramen_ray.data.tables.graphs.session_events import SessionLog, create_events, open_log
from ramen_ray.data.tables.graphs.session_pairs import SessionSettings, create_edges


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
