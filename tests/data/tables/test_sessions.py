"""Co-session edges against plain loops, by any number of threads; what is held out stays out."""

import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import query_table, text_table
from written_out import plain

from ramen_ray.data.engine import engine
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.tables.graphs.session_events import SessionLog, create_events
from ramen_ray.data.tables.graphs.sessions import SessionSettings, create_edges, open_log

TRAIN = ["red shoes", "blue hat", "green coat", "blue hat", "Wool Socks", "grey scarf"]
ADS = ["shoe shop", "hat shop", "coat shop", "shoe shop"]
HELD_OUT = {"validation": ["Wool  socks"], "test": ["silk tie"]}  # train's Wool Socks is one too
NAMES = ["q0", "q1", "q4", "t0", "v0", "new", "NEW"]
QUERIES = [*TRAIN, *NAMES, " red shoes ", "Silk  TIE", "other new"]
CLICKS = [*ADS, "a0", "a2", "unknown shop", "", None]
START = 1.7e9
COLUMNS = ["session_id", "time", "query", "ad_id"]

Edges = dict[tuple[int, str], float]


class Row(NamedTuple):
    session: str | None
    time: float | None
    query: str | None
    ad: str | None


def _random_rows(seed: int, num_rows: int, num_sessions: int) -> list[Row]:
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
    window_s=st.sampled_from([0.0, 4.0, 1800.0]),
    top_k=st.sampled_from([1, 2, 10]),
    max_anchor_degree=st.sampled_from([1, 2, 500]),
    weight=st.sampled_from(["cosine", "pmi"]),
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two train queries and two ads have the same text; all have the user's ids."""
    tables = {"ads": _with_ids(text_table("ad_id", ADS), "a")}
    for split, texts in {"train": TRAIN, **HELD_OUT}.items():
        rows = query_table(texts, [[0]] * len(texts))
        tables[f"queries/{split}"] = _with_ids(rows, {"train": "q", "test": "t"}.get(split, "v"))
    return write_dataset(tmp_path_factory.mktemp("sessions") / "shop", tables, name="shop")


def _with_ids(rows: pa.Table, letter: str) -> pa.Table:
    return rows.append_column("source_id", pa.array([f"{letter}{n}" for n in range(len(rows))]))


def _edges(
    rows: list[Row], dataset: Dataset, limits: SessionSettings, folder: Path, threads: int = 2
) -> tuple[Edges, Edges, dict[str, int]]:
    """Give the edges of both sides, with their anchors by text, and what was counted."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, names=COLUMNS), folder / "log.parquet")
    log = open_log(SessionLog(str(folder / "log.parquet")), dataset.metadata)
    with engine(folder, dataset=dataset) as connection:
        connection.execute(f"SET threads = {threads}")
        counts = create_events(connection, dataset, log, limits.max_session_length)
        found = []
        for side in ("query", "ad"):
            create_edges(connection, side, limits, counts["sessions"])
            edges = connection.sql(
                f"SELECT node, text, weight FROM {side}_edges JOIN {side}_items ON item = anchor"
            ).fetchall()
            found.append({(node, text): weight for node, text, weight in edges})
            assert len(edges) == len(found[-1])
    return found[0], found[1], counts


def _query_text(cell: str) -> str:
    by_id = {f"q{n}": text for n, text in enumerate(TRAIN)}
    return by_id.get(cell.strip(), cell.strip())


def _is_held_out(cell: str) -> bool:
    folded = {plain(text) for texts in HELD_OUT.values() for text in texts}
    return cell in ("t0", "v0") or plain(_query_text(cell)) in folded


def _ad_text(cell: str | None) -> str | None:
    by_id = {f"a{n}": text for n, text in enumerate(ADS)}
    text = by_id.get(cell or "", cell)
    return text if text in ADS else None


Event = tuple[float, str, str | None]


def _expected(rows: list[Row], limits: SessionSettings) -> tuple[Edges, Edges]:
    sessions: dict[str | None, list[Event]] = defaultdict(list)
    for row in rows:
        if not _is_held_out(row.query):
            sessions[row.session].append((row.time, _query_text(row.query), _ad_text(row.ad)))
    for events in sessions.values():
        events.sort(key=lambda event: (event[0], event[1], event[2] or ""))
        del events[limits.max_session_length :]
    sides = []
    for column, texts in ((1, TRAIN), (2, ADS)):
        items = [
            [(event[0], event[column]) for event in events if event[column] is not None]
            for events in sessions.values()
        ]
        sides.append(_expected_side(items, texts, limits))
    return sides[0], sides[1]


def _expected_side(
    sessions: list[list[tuple[float, str]]], texts: list[str], limits: SessionSettings
) -> Edges:
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
    chosen: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for (a, b), count in both.items():
        if a in texts and count >= limits.min_support:
            product = single[a] * single[b]
            strength = count / (math.sqrt(product) if limits.weight == "cosine" else product)
            chosen[a].append((-strength, b))
    by_anchor: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for a, found in chosen.items():
        for strength, b in sorted(found)[: limits.top_k]:
            lift = both[a, b] * len(sessions) / (single[a] * single[b])
            weight = -strength if limits.weight == "cosine" else math.log(lift)
            by_anchor[b] += [(-weight, n) for n, text in enumerate(texts) if text == a]
    return {
        (n, b): -weight
        for b, found in by_anchor.items()
        for weight, n in sorted(found)[: limits.max_anchor_degree]
        if weight < 0
    }


@settings(max_examples=20)
@given(rows=ROWS, limits=SETTINGS, threads=st.integers(1, 4))
def test_edges_are_those_of_plain_loops(dataset, rows, limits, threads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    queries, ads, _ = _edges(rows, dataset, limits, folder, threads)
    expected_queries, expected_ads = _expected(rows, limits)
    assert queries == pytest.approx(expected_queries, rel=1e-12)
    assert ads == pytest.approx(expected_ads, rel=1e-12)


def test_what_is_left_out_is_counted(dataset, tmp_path):
    rows = [
        Row("s", START, "new", "no such ad"),
        Row("s", START, "new", "A0"),
        Row(None, START, "new", "a0"),
        Row(" ", START, "new", "a0"),
        Row("s", None, "new", "a0"),
        Row("s", math.inf, "new", "a0"),
        Row("s", START, None, "a0"),
        Row("s", START, "silk tie", "no such ad"),
        Row("s", START, "red shoes", None),
    ]
    _, _, counts = _edges(rows, dataset, SessionSettings(min_support=1), tmp_path)
    assert {what: number for what, number in counts.items() if number} == {
        "clicks on unknown ads": 2,
        "rows of unknown ads that are known but for case, spaces, leading zeros or a final .0, as"
        " 'A0' for 'a0'": 1,
        "rows without a session": 2,
        "rows without a time": 2,
        "rows without a query": 1,
        "rows of validation and test queries": 1,
        "sessions": 1,
    }


@pytest.mark.parametrize("by_text", [True, False])
def test_names_that_the_import_merged_or_left_out(by_text, dataset, tmp_path):
    path = tmp_path / "shop"
    aliases = pa.table([["m0", "mt", "gone"], ["q0", "t0", None]], schema_of("aliases/query"))
    tables = {table: dataset.read(table) for table in dataset.tables}
    if by_text:  # then the import knows no ids, and merges nothing
        aliases = aliases.slice(2)
        tables = {name: rows.drop_columns("source_id") for name, rows in tables.items()}
    shop = write_dataset(path, {**tables, "aliases/query": aliases}, name="shop")
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


def test_a_huge_session_is_truncated_not_squared(dataset, tmp_path):
    num_events = 200_000
    draw = np.random.default_rng(0)
    numbers = draw.permutation(num_events)
    rows = [
        Row("s", START + (num_events - n) / 100, f"only once {number}", None)
        for n, number in enumerate(numbers)
    ]
    rows += [Row("s", START, "red shoes", None)]
    queries, _, counts = _edges(rows, dataset, SessionSettings(min_support=1, top_k=200), tmp_path)
    assert (counts["sessions cut"], counts["events dropped"]) == (1, num_events + 1 - 100)
    assert queries.keys() == {(0, f"only once {number}") for number in numbers[-99:]}


def test_any_number_of_threads_finds_the_same_weights(dataset, tmp_path):
    rows = _random_rows(1, 130_000, 13_000)
    found = [
        _edges(rows, dataset, SessionSettings(window_s=5, top_k=2), tmp_path, threads)
        for threads in (1, 4)
    ]
    assert found[0] == found[1]
    assert len(found[0][0]) > 5


@pytest.mark.parametrize(
    "wrong",
    [{"top_k": 0}, {"window_s": -1.0}, {"max_session_length": 1}, {"query_set": "co_click"}],
)
def test_settings_that_leave_nothing_are_refused(wrong):
    with pytest.raises(DatasetError, match=next(iter(wrong))):
        SessionSettings(**wrong)
