"""Co-session edges against plain loops, by any number of threads; what is held out stays out."""

import math
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import import_in_process, query_table, text_table, with_ids, with_tables, write_rows
from written_out import edge_weights_of, plain

from ramen_ray.data.engine import engine
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset, write_metadata
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables
from ramen_ray.data.tables.graphs.session_events import SessionLog, create_events
from ramen_ray.data.tables.graphs.sessions import (
    SessionSettings,
    add_co_session,
    create_edges,
    open_log,
)

TRAIN = ["red shoes", "blue hat", "green coat", "blue hat", "Wool Socks", "grey scarf"]
ADS = ["shoe shop", "hat shop", "coat shop", "shoe shop"]
HELD_OUT = {"validation": ["Wool  socks"], "test": ["silk tie"]}  # train's Wool Socks is one too
NAMES = ["q0", "q1", "q4", "t0", "v0", "new", "NEW"]
QUERIES = [*TRAIN, *NAMES, " red shoes ", "Silk  TIE", "other new"]
CLICKS = [*ADS, "a0", "a2", "unknown shop", "", None]
START = 1.7e9
COLUMNS = ["session_id", "time", "query", "ad_id"]


class Row(NamedTuple):
    session: str | None
    time: float | None
    query: str | None
    ad: str | None


def _random_rows(seed, num_rows, num_sessions):
    draw = np.random.default_rng(seed)
    return [
        Row(
            f"s{draw.integers(num_sessions)}",
            START + float(draw.integers(30)),
            QUERIES[draw.integers(len(QUERIES))],
            CLICKS[draw.integers(len(CLICKS))],
        )
        for _ in range(num_rows)
    ]


ROWS = st.builds(_random_rows, st.integers(0, 999), st.integers(1, 80), st.integers(1, 12))
SETTINGS = st.builds(
    SessionSettings,
    min_support=st.integers(1, 3),
    max_session_length=st.sampled_from([2, 5, 100]),
    max_gap_s=st.sampled_from([0.0, 4.0, 1800.0, math.inf]),
    window_s=st.sampled_from([0.0, 4.0, 1800.0]),
    top_k=st.sampled_from([1, 2, 10]),
    max_anchor_degree=st.sampled_from([1, 2, 500]),
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Two train queries and two ads have the same text; all have the user's ids."""
    tables = {"ads": with_ids(text_table("ad_id", ADS), "a")}
    for split, texts in {"train": TRAIN, **HELD_OUT}.items():
        rows = query_table(texts, [[0]] * len(texts))
        tables[f"queries/{split}"] = with_ids(rows, {"train": "q", "test": "t"}.get(split, "v"))
    return write_dataset(tmp_path_factory.mktemp("sessions") / "shop", tables, name="shop")


def _edges(rows, dataset, limits, folder, threads=2):
    """Give the edges of both sides, with their anchors by text, and what was counted."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, names=COLUMNS), folder / "log.parquet")
    log = open_log(SessionLog(str(folder / "log.parquet")), dataset.metadata)
    with engine(folder, dataset=dataset) as connection:
        connection.execute(f"SET threads = {threads}")
        of_sessions = limits.max_session_length, limits.max_gap_s
        counts = create_events(connection, dataset, log, *of_sessions)
        found = []
        for side in ("query", "ad"):
            create_edges(connection, side, limits)
            edges = connection.sql(
                f"SELECT node, text, weight FROM {side}_edges JOIN {side}_items ON item = anchor"
            ).fetchall()
            found.append({(node, text): weight for node, text, weight in edges})
            assert len(edges) == len(found[-1])
    return found[0], found[1], counts


def _query_text(cell):
    by_id = {f"q{n}": text for n, text in enumerate(TRAIN)}
    return by_id.get(cell.strip(), cell.strip())


def _is_held_out(cell):
    folded = {plain(text) for texts in HELD_OUT.values() for text in texts}
    return cell in ("t0", "v0") or plain(_query_text(cell)) in folded


def _ad_text(cell):
    by_id = {f"a{n}": text for n, text in enumerate(ADS)}
    text = by_id.get(cell or "", cell)
    return text if text in ADS else None


def _expected(rows, limits):
    by_id = defaultdict(list)
    for row in rows:
        if not _is_held_out(row.query):
            by_id[row.session].append((row.time, _query_text(row.query), _ad_text(row.ad)))
    sessions = []
    for events in by_id.values():
        events.sort(key=lambda event: (event[0], event[1], event[2] or ""))
        sessions.append([])
        last = events[0][0]
        for event in events:
            if event[0] - last > limits.max_gap_s:
                sessions.append([])
            sessions[-1].append(event)
            last = event[0]
    for events in sessions:
        del events[limits.max_session_length :]
    sides = []
    for column, texts in ((1, TRAIN), (2, ADS)):
        items = [
            [(event[0], event[column]) for event in events if event[column] is not None]
            for events in sessions
        ]
        sides.append(_expected_side(items, texts, limits))
    return sides[0], sides[1]


def _expected_side(sessions, texts, limits):
    single = Counter(item for items in sessions for item in {item for _, item in items})
    both = Counter(
        pair
        for items in sessions
        for pair in {
            (a, b)
            for time_a, a in items
            for time_b, b in items
            if a != b and abs(time_a - time_b) <= limits.window_s
        }
    )
    chosen = defaultdict(list)
    for (a, b), count in both.items():
        if a in texts and count >= limits.min_support:
            chosen[a].append((-count / math.sqrt(single[a] * single[b]), b))
    by_anchor = defaultdict(list)
    for a, found in chosen.items():
        for negated, b in sorted(found)[: limits.top_k]:
            by_anchor[b] += [(negated, n) for n, text in enumerate(texts) if text == a]
    return {
        (n, b): -weight
        for b, found in by_anchor.items()
        for weight, n in sorted(found)[: limits.max_anchor_degree]
        if weight < 0
    }


@settings(max_examples=12)
@given(rows=ROWS, limits=SETTINGS, threads=st.integers(1, 4))
def test_edges_are_those_of_plain_loops(dataset, rows, limits, threads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    queries, ads, _ = _edges(rows, dataset, limits, folder, threads)
    expected_queries, expected_ads = _expected(rows, limits)
    assert queries == pytest.approx(expected_queries, rel=1e-12)
    assert ads == pytest.approx(expected_ads, rel=1e-12)


@pytest.mark.parametrize("by_text", [True, False])
def test_names_that_the_import_merged_or_left_out(by_text, dataset, tmp_path):
    aliases = pa.table([["m0", "mt", "gone"], ["q0", "t0", None]], schema_of("aliases/query"))
    tables = {}
    if by_text:  # then the import knows no ids, and merges nothing
        aliases = aliases.slice(2)
        named = [table for table in dataset.tables if table == "ads" or "queries" in table]
        tables = {table: dataset.read(table).drop_columns("source_id") for table in named}
    shop = with_tables(dataset, tmp_path / "shop", {**tables, "aliases/query": aliases})
    cells = ["blue hat", "gone"] if by_text else ["blue hat", "m0", "mt", "gone"]
    rows = [Row(f"s{s}", START, cell, None) for s in range(2) for cell in cells]
    queries, _, counts = _edges(rows, shop, SessionSettings(), tmp_path)
    assert queries.keys() == (
        {(1, "gone"), (3, "gone")}
        if by_text
        else {(0, "blue hat"), (1, "red shoes"), (3, "red shoes")}
    )
    assert counts["rows of queries that the import left out"] == (0 if by_text else 2)
    assert counts["rows of validation and test queries"] == (0 if by_text else 2)


LOG = "session_id time query ad_id clicks"
HELD_OUT_FROM = START + 200 * 3600
TEST_FROM = START + 250 * 3600


@pytest.fixture
def imported(tmp_path):
    """Import a log by later clicks, with impressions and a bot, and return its rows."""
    draw = np.random.default_rng(0)
    rows = []
    for session in range(300):
        for second in range(0, 480, 60):
            time = START + session * 3600 + second
            query = f"query {draw.integers(40 if time > HELD_OUT_FROM else 30)}"
            rows.append((session, time, query, f"ad {draw.integers(12)}", draw.integers(3)))
        rows.append((session, time, "bot", "ad 0", 3))
    tables = UserTables(
        write_rows(tmp_path / "log.csv", LOG, rows),
        columns=Columns(clicks_ad="ad_id", clicks_weight="clicks", clicks_time="time"),
        splits=Splits(
            validation_from=str(HELD_OUT_FROM), test_from=str(TEST_FROM), held_out="later-clicks"
        ),
        max_clicks_per_query=500,
    )
    return import_in_process(tables, tmp_path / "shop")[0], rows


def test_the_rules_of_the_import_hold_for_its_log(imported, tmp_path):
    """Its graph is that of the clicks alone, before what is held out, and without bots."""
    dataset, rows = imported
    fine = [row for row in rows if row[4] and row[1] < HELD_OUT_FROM and row[2] != "bot"]
    clicks = write_rows(tmp_path / "clicks.csv", LOG[:-7], (row[:4] for row in fine))
    counts = add_co_session(dataset.path, SessionLog(str(tmp_path / "log.csv")), SessionSettings())
    alone = SessionSettings(query_set="searched", ad_set="clicked")
    add_co_session(dataset.path, SessionLog(clicks), alone)
    for side, names in {"query": ("co_session", "searched"), "ad": ("co_click", "clicked")}.items():
        found, expected = (edge_weights_of(Dataset(dataset.path), name, side) for name in names)
        assert found == expected
        assert len(found) > 20
    assert counts["impressions, rows of 0 clicks"] == sum(not row[4] for row in rows)
    assert counts["rows of queries with more than 500 clicks"] == 200
    made = Dataset(dataset.path).metadata["anchor_sets"]["co_session"]["settings"]
    assert (made["columns"]["sessions_weight"], made["max_clicks_per_query"]) == ("clicks", 500)


def test_a_dataset_that_does_not_say_from_when_keeps_held_out_queries_out(
    imported, tmp_path, caplog
):
    dataset, rows = imported
    metadata = {key: one for key, one in dataset.metadata.items() if key != "held_out_from"}
    write_metadata(dataset.path, metadata)
    held_out = {row[2] for row in rows if row[4] and row[1] >= HELD_OUT_FROM}
    trained = {row[2] for row in rows if row[4] and row[1] < HELD_OUT_FROM}
    assert held_out > trained
    with pytest.raises(DatasetError, match="gives no edges"):
        add_co_session(dataset.path, SessionLog(str(tmp_path / "log.csv")), SessionSettings())
    assert "held_out_from in dataset.json" in caplog.text
