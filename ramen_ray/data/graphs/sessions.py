"""From a log of search sessions to co-occurrence edges, as functions of Arrow tables.

Queries asked in one session, and ads clicked in one, are related: the "co-session" graphs of the
RAMEN paper. A log is read into events (:func:`read_events`); the events of whole
sessions give partial counts of pairs (:func:`count_pairs`), which are summed by anchor
(:func:`supported_pairs`), then ranked by node (:func:`strongest_pairs`); :func:`edges_of` weighs
what is left. How often a text occurs overall is kept as the count of its pair with itself. The
caller decides where, and in how many batches, each of these runs; the result is the same.

Queries and ads are known by the hash of their text
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
from ramen_ray.data.graphs.anchor_sets import Edges
from ramen_ray.data.graphs.nodes import HeldOut, NodeIndex
from ramen_ray.data.graphs.ranking import heaviest
from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.sources import Block, as_seconds, as_strings
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.validation.leaks import Protocol

NO_AD = 0
PAIRS_AT_ONCE = 1 << 22

STRONGEST_PAIRS = pa.schema(
    [
        ("node", pa.uint64()),
        ("anchor", pa.uint64()),
        ("sessions", pa.int64()),
        ("anchor_sessions", pa.int64()),
        ("node_sessions", pa.int64()),
    ]
)

Weight = Literal["cosine", "pmi"]


@dataclass(frozen=True)
class SessionLog:
    """A log of search sessions: one row per query asked or ad clicked.

    Attributes:
        sessions: CSV, TSV, JSON lines or parquet; a file, a folder or a glob.
        session_column: The session of each row.
        time_column: When: timestamps, seconds, or ISO 8601 text.
        query_column: The query's text or your id of it.
        ad_column: The ad clicked, or nothing: your id of it, its text or, where the dataset has no
            ids of yours, its number; None if the log has no ads.
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
        max_session_length: How many events of a session count; later ones are cut off.
        window_s: Largest number of seconds between the two of a pair.
        top_k: Most anchors a node keeps: those of its heaviest edges.
        max_anchor_degree: Most edges an anchor keeps: the heaviest.
        weight: With c sessions that hold both, n and m that hold the one and the other, and N in
            all: cosine is c / sqrt(n m); pmi is log(c N / (n m)), and only what is above 0 counts.
        query_set: Name of the anchor set of queries asked in the same sessions.
        ad_set: Name of the anchor set of ads clicked in the same sessions.
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
                raise DatasetError(f"{name} is {getattr(self, name)}; it must be {least} or more")
        if not self.window_s >= 0:
            raise DatasetError(f"window_s is {self.window_s}; it must be 0 or more")
        if self.query_set == self.ad_set:
            raise DatasetError(f"query_set and ad_set are both {self.ad_set!r}; they must differ")


@dataclass(frozen=True)
class KnownNodes:
    """What a dataset knows of the queries and ads that a log may name."""

    queries: NodeIndex
    ads: NodeIndex
    held_out: HeldOut


def read_events(
    block: Block, log: SessionLog, known: KnownNodes
) -> tuple[pa.Table, pa.Table, Counter[str]]:
    """Turn some rows of a log into events.

    Rows of validation and test queries are left out entirely. Such a query must not become an
    anchor, nor its clicks tie ads together: what the model is measured on would then have shaped
    the graph that it is trained with, and the measured gain would not be seen in production.

    Returns:
        Events: session uint64, time float64, query and ad uint64 text hashes, is_node whether the
        query is a train query. Texts of the other queries: hash uint64, text. Counts of what was
        left out, by reason.
    """
    sessions, no_session = block.cells(log.session_column, as_strings)
    seconds, no_time = block.cells(log.time_column, as_seconds)
    cells, no_query = block.cells(log.query_column, as_strings)
    queries = pc.utf8_trim_whitespace(cells).dictionary_encode()
    asked = queries.indices.to_numpy()
    hashes, nodes = known.queries.identify(queries.dictionary)
    held_out = known.held_out.holds(queries.dictionary, nodes)[asked]
    ads, unknown_ad = _clicked(block, log, known.ads)
    dropped = Counter({"unreadable lines": sum(f.severity == "error" for f in block.findings)})
    kept = np.ones(len(asked), dtype=bool)
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
            "query": hashes[asked],
            "ad": ads,
            "is_node": (nodes >= 0)[asked],
        }
    ).filter(pa.array(kept))
    new = np.unique(asked[kept])
    new = new[nodes[new] < 0]
    texts = pa.table({"hash": hashes[new], "text": queries.dictionary.take(pa.array(new))})
    return events, texts, dropped


def _clicked(block: Block, log: SessionLog, ads: NodeIndex) -> tuple[UInt64s, Booleans]:
    """Return the text hash of the ad clicked (rows,), or NO_AD, and where the ad is unknown."""
    num_rows = block.rows.num_rows
    if log.ad_column is None:
        return np.full(num_rows, NO_AD, dtype=np.uint64), np.zeros(num_rows, dtype=bool)
    cells, no_ad = block.cells(log.ad_column, as_strings)
    clicked = pc.utf8_trim_whitespace(cells).dictionary_encode()
    hashes, nodes = ads.identify(clicked.dictionary, by_number=True)
    row = clicked.indices.to_numpy()
    known = (nodes >= 0)[row] & ~no_ad
    return np.where(known, hashes[row], np.uint64(NO_AD)), ~known & ~no_ad


def count_pairs(events: pa.Table, settings: SessionSettings) -> tuple[pa.Table, Counter[str]]:
    """Count in how many sessions each pair of queries, and each pair of ads, occurs.

    Args:
        events: all events of some sessions.
        settings: the cut of long sessions, and the window.

    Returns:
        Pairs: node and anchor uint64 hashes, sessions int64; a text's pair with itself counts its
        sessions. Except in such pairs, nodes are ads and train queries. Also counts of sessions,
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
            "events cut off": len(session) - len(order),
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
    )  # every two items of a session, once
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
    """Yield pairs of rows of one session that are close in time: neighbours, next but one, ..."""
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
    """Sum the counts of whole anchors, drop rare pairs, and add each anchor's ``anchor_sessions``.

    Args:
        pairs: rows that :func:`count_pairs` returned, all of them for each anchor among them.
        min_support: sessions in which a pair must occur.
    """
    pairs = _summed(pairs)
    pairs = pairs.filter(pc.greater_equal(pairs["sessions"], min_support))
    return pairs.append_column("anchor_sessions", pa.array(_own_sessions(pairs, "anchor")))


def strongest_pairs(pairs: pa.Table, settings: SessionSettings) -> pa.Table:
    """Keep the ``top_k`` strongest anchors of each node, and add its ``node_sessions``.

    Args:
        pairs: rows of :func:`supported_pairs`, all of them for each node among them.
        settings: ``top_k`` and ``weight``.
    """
    pairs = pairs.append_column("node_sessions", pa.array(_own_sessions(pairs, "node")))
    pairs = pairs.filter(pc.not_equal(pairs["node"], pairs["anchor"]))
    node, anchor = pairs["node"].to_numpy(), pairs["anchor"].to_numpy()
    return pairs.take(pa.array(heaviest(node, _strength(pairs, settings), anchor, settings.top_k)))


def edges_of(
    pairs: pa.Table, nodes: NodeIndex, num_sessions: int, settings: SessionSettings
) -> tuple[Edges, UInt64s]:
    """Weigh the pairs of one side and turn them into edges of the dataset's nodes.

    Args:
        pairs: of :func:`strongest_pairs`; those of nodes not in ``nodes`` are skipped.
        nodes: the train queries or the ads; those of equal text have equal edges.
        num_sessions: how many sessions there are.
        settings: ``weight`` and ``max_anchor_degree``.

    Returns:
        The edges, and the text hashes of their anchors (anchors,), ascending.
    """
    weights = _strength(pairs, settings, num_sessions)
    if settings.weight == "pmi":
        above = weights > 1
        pairs, weights = pairs.filter(pa.array(above)), np.log(weights[above])
    position, node = nodes.by_text.all(pairs["node"].to_numpy())
    hashes, anchor = np.unique(pairs["anchor"].to_numpy()[position], return_inverse=True)
    weights = weights[position]
    kept = heaviest(anchor, weights, node, settings.max_anchor_degree)
    return Edges(node[kept], anchor[kept], weights[kept]), hashes


def _strength(pairs: pa.Table, settings: SessionSettings, num_sessions: int = 1) -> Float64s:
    """Return the cosine, or the ratio c N / (n m) that pointwise mutual information grows with."""
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
    """Return for each pair in how many sessions its text in ``column`` occurs."""
    own = pairs.filter(pc.equal(pairs["node"], pairs["anchor"]))
    texts, sessions = own["node"].to_numpy(), own["sessions"].to_numpy()
    order = np.argsort(texts)
    return sessions[order][np.searchsorted(texts[order], pairs[column].to_numpy())]
