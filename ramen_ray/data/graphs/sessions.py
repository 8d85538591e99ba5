"""Turn a log of search sessions into co-occurrence edges, as functions of Arrow tables.

Queries searched in the same session, and ads clicked in the same session, are related: these are
the "co-session" graphs of the RAMEN paper. A log is read into events (:func:`read_events`). The
events of whole sessions give partial counts of pairs (:func:`count_pairs`), which are summed by
anchor (:func:`supported_pairs`), then ranked by node (:func:`strongest_pairs`). Finally, by anchor
again, :func:`edges_of` computes the weights. The count of a text's pair with itself is the number
of all sessions with the text. The caller decides where, and in how many batches, each function
runs; the result is the same.

Queries and ads are identified by the hash of their text
(see :class:`~ramen_ray.data.graphs.nodes.NodeIndex`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Float64s, Int64s, UInt64s
from ramen_ray.data.graphs.edge_staging import EDGES
from ramen_ray.data.graphs.nodes import KnownNodes, NodeIndex
from ramen_ray.data.graphs.ranking import heaviest
from ramen_ray.data.prepared.hashing import hash_strings, insertion_points
from ramen_ray.data.sources import SourceBatch, as_seconds, as_strings
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.validation.leaks import Protocol

NO_AD = 0
PAIRS_AT_ONCE = 1 << 22

Weight = Literal["cosine", "pmi"]


@dataclass(frozen=True)
class SessionLog:
    """A log of search sessions: one row per query searched or ad clicked.

    Attributes:
        sessions: CSV, TSV, JSON lines or parquet; a file, a folder or a glob.
        session_column: The row's session.
        time_column: The row's time: a timestamp, seconds, or ISO 8601 text.
        query_column: The query's text, or your id of it.
        ad_column: The clicked ad, or empty: your id, its text or, if the dataset does not have your
            ids, its number; None if the log has no ads.
    """

    sessions: str
    session_column: str = "session_id"
    time_column: str = "time"
    query_column: str = "query"
    ad_column: str | None = "ad_id"

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        columns = [self.session_column, self.time_column, self.query_column]
        return columns if self.ad_column is None else [*columns, self.ad_column]


@dataclass(frozen=True)
class SessionSettings:
    """Which pairs become edges, and their weights.

    Attributes:
        min_support: Smallest number of sessions in which a pair must occur.
        max_session_length: Largest number of events of a session; later ones are dropped.
        window_s: Largest number of seconds between the two events of a pair.
        top_k: Largest number of anchors of a node; the heaviest edges are kept.
        max_anchor_degree: Largest number of edges of an anchor; the heaviest are kept.
        weight: With c sessions that have both, n and m that have the one and the other, and N in
            all: cosine is c / sqrt(n m); pmi is log(c N / (n m)), and only edges above 0 are kept.
        query_set: Name of the anchor set of queries that share sessions.
        ad_set: Name of the anchor set of ads that are clicked in the same sessions.
        protocol: strict leaves out edges that join a held-out query to its answer; as-published
            keeps them.
    """

    min_support: int = 2
    max_session_length: int = 100
    window_s: float = 1800.0
    top_k: int = 10
    max_anchor_degree: int = 500
    weight: Weight = "cosine"
    query_set: str = "co_session"
    ad_set: str = "co_click"
    protocol: Protocol = "strict"

    def __post_init__(self) -> None:
        """Refuse settings that would leave no edges."""
        lowest = {"min_support": 1, "max_session_length": 2, "top_k": 1, "max_anchor_degree": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise DatasetError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not self.window_s >= 0:
            raise DatasetError(f"window_s is {self.window_s}; it must be at least 0")
        if self.query_set == self.ad_set:
            raise DatasetError(f"query_set and ad_set are both {self.ad_set!r}; they must differ")


def read_events(
    batch: SourceBatch, log: SessionLog, known: KnownNodes
) -> tuple[pa.Table, pa.Table, Counter[str]]:
    """Turn some rows of a log into events.

    Rows of validation and test queries are left out entirely. A held-out query must not become an
    anchor, and its clicks must not link ads: otherwise the data that the model is measured on would
    shape the graph that it is trained with, and the measured gain would not hold in production.

    Returns:
        Events: session uint64, time float64, query and ad uint64 text hashes, is_node whether the
        query is a train query. Texts of the other queries: hash uint64, text. Counts of what was
        left out, by reason.
    """
    sessions, no_session = batch.cells(log.session_column, as_strings)
    seconds, no_time = batch.cells(log.time_column, as_seconds)
    cells, no_query = batch.cells(log.query_column, as_strings)
    queries = pc.utf8_trim_whitespace(cells).dictionary_encode()
    codes = queries.indices.to_numpy()
    hashes, nodes = known.queries.identify(queries.dictionary)
    held_out = known.held_out.holds(queries.dictionary, nodes)[codes]
    ads, unknown_ad = _clicked(batch, log, known.ads)
    dropped = Counter({"unreadable lines": sum(f.severity == "error" for f in batch.findings)})
    kept = np.ones(len(codes), dtype=bool)
    for reason, bad in (
        ("rows without a session", no_session),
        ("rows without a time", no_time),
        ("rows without a query", no_query),
        ("rows of validation and test queries", held_out),
    ):
        dropped[reason] = int((kept & bad).sum())
        kept &= ~bad
    dropped["clicks on unknown ads"] = int((kept & unknown_ad).sum())
    events = pa.table(
        {
            "session": hash_strings(sessions),
            "time": seconds,
            "query": hashes[codes],
            "ad": ads,
            "is_node": (nodes >= 0)[codes],
        }
    ).filter(pa.array(kept))
    new = np.unique(codes[kept])
    new = new[nodes[new] < 0]
    texts = pa.table({"hash": hashes[new], "text": queries.dictionary.take(pa.array(new))})
    return events, texts, dropped


def _clicked(batch: SourceBatch, log: SessionLog, ads: NodeIndex) -> tuple[UInt64s, Booleans]:
    """Return the text hash of the clicked ad (rows,), or NO_AD, and which ads are unknown."""
    num_rows = batch.rows.num_rows
    if log.ad_column is None:
        return np.full(num_rows, NO_AD, dtype=np.uint64), np.zeros(num_rows, dtype=bool)
    cells, no_ad = batch.cells(log.ad_column, as_strings)
    clicked = pc.utf8_trim_whitespace(cells).dictionary_encode()
    hashes, nodes = ads.identify(clicked.dictionary, by_number=True)
    row = clicked.indices.to_numpy()
    known = (nodes >= 0)[row] & ~no_ad
    return np.where(known, hashes[row], np.uint64(NO_AD)), ~known & ~no_ad


def count_pairs(events: pa.Table, settings: SessionSettings) -> tuple[pa.Table, Counter[str]]:
    """Count the sessions in which each pair of queries, and each pair of ads, occurs.

    Args:
        events: all events of some sessions.
        settings: the limits on session length and window.

    Returns:
        Pairs: node and anchor uint64 hashes, sessions int64; a text's pair with itself counts its
        sessions. In all other pairs, nodes are ads and train queries. Also the numbers of sessions
        and of those that were cut.
    """
    session, time, query, ad, is_node = (column.to_numpy() for column in events.columns)
    order = np.lexsort((ad, query, time, session))
    session = session[order]
    starts = np.flatnonzero(np.diff(session, prepend=session[:1] + np.uint64(1)))
    lengths = np.diff(starts, append=len(session))
    place = np.arange(len(session)) - np.repeat(starts, lengths)
    order = order[place < settings.max_session_length]
    counts = Counter(
        {
            "sessions": len(lengths),
            "sessions cut": int((lengths > settings.max_session_length).sum()),
            "events dropped": len(session) - len(order),
        }
    )
    lengths = np.minimum(lengths, settings.max_session_length)
    number = np.repeat(np.arange(len(lengths)), lengths)
    tables = []
    for rows in _whole_sessions(lengths):
        chosen = order[rows]
        for item, nodes in ((query, is_node), (ad, np.ones(len(ad), dtype=bool))):
            has_item = item[chosen] != NO_AD
            of_side = chosen[has_item]
            tables.append(
                _pairs_of(
                    number[rows][has_item],
                    time[of_side],
                    item[of_side],
                    nodes[of_side],
                    settings.window_s,
                )
            )
    return _summed(pa.concat_tables(tables)), counts


def _whole_sessions(lengths: Int64s) -> Iterator[slice]:
    """Cut the rows of sessions of ``lengths`` into batches with a bounded number of pairs."""
    pairs, ends = np.cumsum(lengths * lengths), np.cumsum(lengths)
    cuts = np.searchsorted(pairs, np.arange(PAIRS_AT_ONCE, pairs[-1], PAIRS_AT_ONCE), side="right")
    bounds = np.unique([0, *ends[cuts[cuts < len(ends)]], ends[-1]])
    for start, stop in pairwise(bounds.tolist()):
        yield slice(start, stop)


def _pairs_of(
    session: Int64s, time: Float64s, item: UInt64s, is_node: Booleans, window_s: float
) -> pa.Table:
    """Count the pairs of one side; all arguments (events,), sorted by session and time."""
    items, code = np.unique(item, return_inverse=True)
    nodes = np.zeros(len(items), dtype=bool)
    nodes[code] = is_node
    presence, member = np.unique(session * len(items) + code, return_inverse=True)
    item_of = presence % max(len(items), 1)
    both = np.unique(
        np.concatenate(
            [
                np.minimum(member[one], member[other]) * len(presence)
                + np.maximum(member[one], member[other])
                for one, other in _within_window(session, time, window_s)
            ]
        )
    )  # every pair of items of a session, once
    one, other = item_of[both // max(len(presence), 1)], item_of[both % max(len(presence), 1)]
    keys, counts = np.unique(
        np.minimum(one, other) * len(items) + np.maximum(one, other), return_counts=True
    )
    one, other = keys // max(len(items), 1), keys % max(len(items), 1)
    forth, back = nodes[one] & (one != other), nodes[other] & (one != other)
    return pa.table(
        {
            "node": np.concatenate([items, items[one[forth]], items[other[back]]]),
            "anchor": np.concatenate([items, items[other[forth]], items[one[back]]]),
            "sessions": np.concatenate(
                [np.bincount(item_of, minlength=len(items)), counts[forth], counts[back]]
            ),
        }
    )


def _within_window(
    session: Int64s, time: Float64s, window_s: float
) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield pairs of rows of one session within the window: neighbours, next but one, ..."""
    first = np.arange(len(session))
    distance = 0
    while distance == 0 or len(first):
        distance += 1
        first = first[first + distance < len(session)]
        second = first + distance
        near = (session[first] == session[second]) & (time[second] - time[first] <= window_s)
        first = first[near]
        yield first, first + distance


def supported_pairs(pairs: pa.Table, min_support: int) -> pa.Table:
    """Sum the counts of pairs, drop rare pairs, and add each anchor's ``anchor_sessions``.

    Args:
        pairs: rows of :func:`count_pairs`; for each of their anchors, all of its rows.
        min_support: number of sessions in which a pair must occur.
    """
    pairs = _summed(pairs)
    pairs = pairs.filter(pc.greater_equal(pairs["sessions"], min_support))
    return pairs.append_column("anchor_sessions", pa.array(_own_sessions(pairs, "anchor")))


def strongest_pairs(pairs: pa.Table, settings: SessionSettings) -> pa.Table:
    """Keep the ``top_k`` strongest anchors of each node, and add its ``node_sessions``.

    Args:
        pairs: rows of :func:`supported_pairs`; for each of their nodes, all of its rows.
        settings: ``top_k`` and ``weight``.
    """
    pairs = pairs.append_column("node_sessions", pa.array(_own_sessions(pairs, "node")))
    pairs = pairs.filter(pc.not_equal(pairs["node"], pairs["anchor"]))
    node, anchor = pairs["node"].to_numpy(), pairs["anchor"].to_numpy()
    return pairs.take(pa.array(heaviest(node, _strength(pairs, settings), anchor, settings.top_k)))


def edges_of(
    pairs: pa.Table, nodes: NodeIndex, num_sessions: int, settings: SessionSettings
) -> pa.Table:
    """Weigh the pairs of one side and turn them into edges of the dataset's nodes.

    Args:
        pairs: rows of :func:`strongest_pairs`, for each of their anchors all of its rows; nodes
            that are not in ``nodes`` are skipped.
        nodes: the train queries or the ads; nodes of equal text have equal edges.
        num_sessions: number of all sessions.
        settings: ``weight`` and ``max_anchor_degree``.

    Returns:
        The edges, as of :data:`~ramen_ray.data.graphs.edge_staging.EDGES`; anchors are hashes of
        texts.
    """
    weights = _strength(pairs, settings, num_sessions)
    if settings.weight == "pmi":
        above = weights > 1
        pairs, weights = pairs.filter(pa.array(above)), np.log(weights[above])
    position, node = nodes.by_text.all(pairs["node"].to_numpy())
    anchor, weight = pairs["anchor"].to_numpy()[position], weights[position]
    kept = heaviest(anchor, weight, node, settings.max_anchor_degree)
    kept = kept[np.argsort(node[kept], kind="stable")]
    return pa.table([node[kept], anchor[kept], weight[kept]], schema=EDGES)


def _strength(pairs: pa.Table, settings: SessionSettings, num_sessions: int = 1) -> Float64s:
    """Return the cosine, or the ratio c N / (n m), whose logarithm is the PMI."""
    both, one, other = (
        pairs[name].to_numpy().astype(np.float64)
        for name in ("sessions", "node_sessions", "anchor_sessions")
    )
    if settings.weight == "cosine":
        return both / np.sqrt(one * other)
    return both * num_sessions / (one * other)


def _summed(pairs: pa.Table) -> pa.Table:
    sums = pairs.group_by(["node", "anchor"], use_threads=False).aggregate([("sessions", "sum")])
    return sums.select(["node", "anchor", "sessions_sum"]).rename_columns(
        ["node", "anchor", "sessions"]
    )


def _own_sessions(pairs: pa.Table, column: str) -> Int64s:
    """Return, for each pair, the number of sessions with its text in ``column``."""
    own = pairs.filter(pc.equal(pairs["node"], pairs["anchor"]))
    texts, sessions = own["node"].to_numpy(), own["sessions"].to_numpy()
    order = np.argsort(texts)
    return sessions[order][insertion_points(pairs[column].to_numpy(), texts[order])]
