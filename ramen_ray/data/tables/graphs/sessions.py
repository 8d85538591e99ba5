"""Co-session anchor sets: queries searched, and ads clicked, in the same sessions of a log.

All orders end in an item, whose number is the order of its text, or in a node, so that ties are
broken in one way with any number of threads.
"""

from dataclasses import dataclass
from pathlib import Path

from ramen_ray.data.checks.validation import check
from ramen_ray.data.engine import Connection, engine, run
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.store.schemas import Protocol
from ramen_ray.data.tables.graphs import anchor_sets
from ramen_ray.data.tables.graphs.session_events import (
    SessionLog,
    by_import_rules,
    create_events,
    open_log,
)


@dataclass(frozen=True)
class SessionSettings:
    """Which pairs become edges.

    With c sessions that have both, and n and m that have the one and the other, the weight is the
    cosine, c / sqrt(n m).

    Attributes:
        min_support: Smallest number of sessions in which a pair must occur.
        max_session_length: Largest number of events of a session; later ones are dropped.
        max_gap_s: Largest number of seconds between an event and the next of its session; after a
            longer gap the id stands for another session, as ids often begin anew each day.
        window_s: Largest number of seconds between the two events of a pair.
        top_k: Largest number of anchors of a node; the heaviest edges are kept.
        max_anchor_degree: Largest number of edges of an anchor; the heaviest are kept.
        query_set: Name of the anchor set of queries that share sessions.
        ad_set: Name of the anchor set of ads that are clicked in the same sessions.
        protocol: strict leaves out edges that join a held-out query to its answer; as-published
            keeps all.
    """

    min_support: int = 2
    max_session_length: int = 100
    max_gap_s: float = 1800.0
    window_s: float = 1800.0
    top_k: int = 10
    max_anchor_degree: int = 500
    query_set: str = "co_session"
    ad_set: str = "co_click"
    protocol: Protocol = "strict"

    def __post_init__(self) -> None:
        """Refuse settings that would leave no edges."""
        lowest = {"min_support": 1, "max_session_length": 2, "top_k": 1, "max_anchor_degree": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise DatasetError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("max_gap_s", "window_s"):
            if not getattr(self, name) >= 0:
                raise DatasetError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.query_set == self.ad_set:
            raise DatasetError(f"query_set and ad_set are both {self.ad_set!r}; they must differ")


def add_co_session(
    dataset_path: Path,
    log: SessionLog,
    settings: SessionSettings,
    replace: bool = False,
    memory: str | None = None,
) -> dict[str, int]:
    """Add the anchor sets of train queries and of ads, by a log of sessions, to a dataset.

    A set that gets no edges is left out; with ``replace``, an old one is removed. For ``memory``
    see :func:`~ramen_ray.data.engine.engine`. Returns counts for people. Raises a DatasetError if
    dataset or log is not usable, a name is taken, or no edge is left.
    """
    dataset = Dataset(dataset_path)
    sets = {"query": settings.query_set, "ad": settings.ad_set}
    for name in sets.values():
        anchor_sets.check_name(dataset, name, replace)
    check(dataset)
    log = by_import_rules(log, dataset.metadata)
    table = open_log(log, dataset.metadata)
    limits = settings.max_session_length, settings.max_gap_s, log.max_clicks_per_query
    made = anchor_sets.made_by("co-session", log, settings)
    with (
        anchor_sets.folder_beside(dataset) as aside,
        engine(aside, memory, dataset) as connection,
    ):
        summary = create_events(connection, dataset, table, *limits)
        writer = DatasetWriter(aside)
        for side, name in sets.items():
            create_edges(connection, side, settings)
            anchors = f"SELECT item AS id, text FROM {side}_items"
            connection.execute(f"CREATE OR REPLACE VIEW anchors AS {anchors}")
            summary |= {f"edges/{name}/{side}": 0} | anchor_sets.write_edges(
                connection, dataset, name, [side], settings.protocol, writer
            )
        written = [name for name in sets.values() if f"anchors/{name}" in summary]
        if not written:
            left_out = ", ".join(f"{count} {what}" for what, count in summary.items() if count)
            raise DatasetError(
                f"{log.sessions} gives no edges; lower min_support? Found: {left_out or 'nothing'}"
            )
        for name in written:
            anchor_sets.put_in_place(aside, dataset, name, made, replace)
    for name in {*sets.values()}.intersection(dataset.anchor_sets).difference(written):
        anchor_sets.remove_anchor_set(dataset.path, name)  # which is replaced
    return summary


def create_edges(connection: Connection, side: str, settings: SessionSettings) -> None:
    """Create ``{side}_edges``, for `write_edges`; nodes of equal text have equal edges."""
    made = {
        # the window is quoted, as it may be inf, which is no number of SQL but can be cast to one
        "pairs": f"""SELECT one, other, count(*) AS sessions
            FROM (
                SELECT DISTINCT left_.session, left_.{side} AS one, right_.{side} AS other
                FROM events AS left_ JOIN events AS right_
                    ON left_.session = right_.session AND left_.{side} < right_.{side}
                WHERE abs(left_.time - right_.time) <= '{settings.window_s}'::DOUBLE)
            GROUP BY one, other HAVING sessions >= {settings.min_support}""",
        "items_sessions": f"""SELECT item, count(*) AS sessions
            FROM (SELECT DISTINCT session, {side} AS item FROM events WHERE {side} IS NOT NULL)
            GROUP BY item""",
        # the strongest anchors of each item that is a node
        "chosen": f"""WITH
                both_ways AS (
                    SELECT one AS node, other AS anchor, sessions FROM pairs
                    UNION ALL SELECT other, one, sessions FROM pairs),
                of_nodes AS (
                    SELECT * FROM both_ways WHERE node IN (
                        SELECT item FROM {side}_items
                        WHERE text IN (SELECT text FROM {side}_texts))),
                counted AS (
                    SELECT node, anchor,
                        of_nodes.sessions / sqrt(of_node.sessions::DOUBLE * of_anchor.sessions)
                            AS weight
                    FROM of_nodes
                    JOIN items_sessions AS of_node ON of_node.item = node
                    JOIN items_sessions AS of_anchor ON of_anchor.item = anchor)
            SELECT node, anchor, weight FROM counted QUALIFY row_number() OVER (
                PARTITION BY node ORDER BY weight DESC, anchor) <= {settings.top_k}""",
        # of whom each anchor keeps its heaviest edges
        f"{side}_edges": f"""SELECT texts.node, anchor, 0 AS place, weight
            FROM chosen
            JOIN {side}_items AS items ON items.item = chosen.node
            JOIN {side}_texts AS texts ON texts.text = items.text
            QUALIFY row_number() OVER (
                PARTITION BY anchor ORDER BY weight DESC, texts.node
            ) <= {settings.max_anchor_degree}""",
    }
    for table, sql in made.items():
        create = f"CREATE OR REPLACE TABLE {table} AS {sql}"
        run(connection, f"making {table} of {side} items", create)
