"""Co-session edges against plain loops, in any number of parts; what is held out stays out."""

import math
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import query_table, text_table

from ramen_ray.data.graphs.nodes import KnownNodes, NodeIndex
from ramen_ray.data.graphs.sessions import (
    SessionLog,
    SessionSettings,
    count_pairs,
    edges_of,
    read_events,
    strongest_pairs,
    supported_pairs,
)
from ramen_ray.data.sources import Piece, SourceBatch
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset

TRAIN = ["red shoes", "blue hat", "green coat", "blue hat", "Wool Socks", "grey scarf"]
ADS = ["shoe shop", "hat shop", "coat shop", "shoe shop"]
HELD_OUT = {"validation": ["Wool  socks"], "test": ["silk tie"]}  # train's Wool Socks is one too
QUERIES = [*TRAIN, "q0", "q1", "q4", " red shoes ", "Silk  TIE", "t0", "new", "other new", "NEW"]
CLICKS = [*ADS, "a0", "a2", "unknown shop", "", None]
LOG = SessionLog("unused")

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
            float(draw.integers(30)),
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


@pytest.fixture(scope="module")
def known(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> KnownNodes:
    return KnownNodes.in_files(dataset, "strict", tmp_path_factory.mktemp("index") / "known")


def _with_ids(rows: pa.Table, letter: str) -> pa.Table:
    return rows.append_column("source_id", pa.array([f"{letter}{n}" for n in range(len(rows))]))


def _batch(rows: list[Row]) -> SourceBatch:
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    piece = Piece(pyarrow.fs.LocalFileSystem(), "log.parquet", "parquet", (), (), 0, 1)
    return SourceBatch(
        piece, pa.table(dict(zip(LOG.columns, columns, strict=True))), np.arange(len(rows))
    )


def _parted(rows: pa.Table, key: str, num_parts: int) -> list[pa.Table]:
    part = rows[key].to_numpy() % num_parts
    parts = [rows.filter(pa.array(part == number)) for number in range(num_parts)]
    return [part for part in parts if len(part)]


def _edges(
    rows: list[Row], known: KnownNodes, limits: SessionSettings, num_parts: int
) -> tuple[Edges, Edges, Counter[str]]:
    """Run the stages with ``num_parts`` parts each, and give anchors by text."""
    cuts = [rows[start::num_parts] for start in range(min(num_parts, len(rows)))]
    read = [read_events(_batch(cut), LOG, known) for cut in cuts]
    notes = sum((dropped for _, _, dropped in read), Counter[str]())
    events = pa.concat_tables(events for events, _, _ in read)
    pairs = []
    for part in _parted(events, "session", num_parts):
        found, counts = count_pairs(part, limits)
        pairs.append(found)
        notes += counts
    if not pairs:
        return {}, {}, notes
    for key, stage in (
        ("anchor", lambda part: supported_pairs(part, limits.min_support)),
        ("node", lambda part: strongest_pairs(part, limits)),
    ):
        pairs = [stage(part) for part in _parted(pa.concat_tables(pairs), key, num_parts)]
        if not pairs:
            return {}, {}, notes
    texts = {row["hash"]: row["text"] for _, new, _ in read for row in new.to_pylist()}
    sides = []
    for nodes, node_texts in ((known.queries, TRAIN), (known.ads, ADS)):
        names = texts | dict(zip(nodes.text_hashes.tolist(), node_texts, strict=True))
        edges = {}
        for part in _parted(pa.concat_tables(pairs), "anchor", num_parts):
            of_part = edges_of(part, nodes, notes["sessions"], limits)
            triples = zip(*(column.to_pylist() for column in of_part.columns), strict=True)
            edges |= {(node, names[anchor]): weight for node, anchor, weight in triples}
        sides.append(edges)
    return sides[0], sides[1], notes


def _query_text(cell: str) -> str:
    by_id = {f"q{n}": text for n, text in enumerate(TRAIN)}
    return by_id.get(cell.strip(), cell.strip())


def _is_held_out(cell: str) -> bool:
    folded = {" ".join(text.lower().split()) for texts in HELD_OUT.values() for text in texts}
    return cell in ("t0", "v0") or " ".join(_query_text(cell).lower().split()) in folded


def _ad_text(cell: str | None) -> str | None:
    by_id = {f"a{n}": text for n, text in enumerate(ADS)}
    text = by_id.get(cell or "", cell)
    return text if text in ADS else None


Event = tuple[float, str, str | None]


def _expected(rows: list[Row], known: KnownNodes, limits: SessionSettings) -> tuple[Edges, Edges]:
    sessions: dict[str | None, list[Event]] = defaultdict(list)
    for row in rows:
        if not _is_held_out(row.query):
            sessions[row.session].append((row.time, _query_text(row.query), _ad_text(row.ad)))
    for events in sessions.values():
        events.sort(key=lambda e: (e[0], _hash(known.queries, e[1]), _hash(known.ads, e[2])))
        del events[limits.max_session_length :]
    sides = []
    for column, nodes, texts in ((1, known.queries, TRAIN), (2, known.ads, ADS)):
        items = [
            [(event[0], event[column]) for event in events if event[column] is not None]
            for events in sessions.values()
        ]
        sides.append(_expected_side(items, nodes, texts, limits))
    return sides[0], sides[1]


def _expected_side(
    sessions: list[list[tuple[float, str]]],
    nodes: NodeIndex,
    texts: list[str],
    limits: SessionSettings,
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
    chosen: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for (a, b), count in both.items():
        if a in texts and count >= limits.min_support:
            product = single[a] * single[b]
            strength = count / (math.sqrt(product) if limits.weight == "cosine" else product)
            chosen[a].append((-strength, _hash(nodes, b), b))
    by_anchor: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for a, found in chosen.items():
        for strength, _, b in sorted(found)[: limits.top_k]:
            lift = both[a, b] * len(sessions) / (single[a] * single[b])
            weight = -strength if limits.weight == "cosine" else math.log(lift)
            by_anchor[b] += [(-weight, n) for n, text in enumerate(texts) if text == a]
    return {
        (n, b): -weight
        for b, found in by_anchor.items()
        for weight, n in sorted(found)[: limits.max_anchor_degree]
        if weight < 0
    }


def _hash(nodes: NodeIndex, text: str | None) -> int:
    return 0 if text is None else int(nodes.identify(pa.array([text]))[0][0])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, limits=SETTINGS, num_parts=st.integers(1, 4))
def test_edges_are_those_of_plain_loops_in_any_number_of_parts(
    known: KnownNodes, rows: list[Row], limits: SessionSettings, num_parts: int
) -> None:
    queries, ads, _ = _edges(rows, known, limits, num_parts)
    expected_queries, expected_ads = _expected(rows, known, limits)
    assert queries == pytest.approx(expected_queries, rel=1e-12)
    assert ads == pytest.approx(expected_ads, rel=1e-12)


def test_nothing_of_a_held_out_query_enters_the_graph(known: KnownNodes) -> None:
    held_out = ["silk tie", "SILK   tie", "t0", "v0", "wool socks", "q4"]
    rows = [Row(f"s{s}", n, q, "a2") for s in range(3) for n, q in enumerate(held_out)]
    rows += [Row(f"s{s}", 9, "red shoes", "a1") for s in range(3)]
    rows += [Row(f"s{s}", 9, "new", "") for s in range(3)]
    queries, ads, notes = _edges(rows, known, SessionSettings(), 2)
    assert queries == {(0, "new"): pytest.approx(1.0)}
    assert ads == {}
    assert notes["rows of validation and test queries"] == 18


def test_what_is_left_out_is_counted(known: KnownNodes) -> None:
    rows = [
        Row("s", 0, "new", "no such ad"),
        Row(None, 0, "new", "a0"),
        Row(" ", 0, "new", "a0"),
        Row("s", None, "new", "a0"),
        Row("s", math.inf, "new", "a0"),
        Row("s", 0, None, "a0"),
        Row("s", 0, "silk tie", "no such ad"),
        Row("s", 0, "red shoes", None),
    ]
    _, _, notes = _edges(rows, known, SessionSettings(min_support=1), 1)
    assert +notes == {
        "clicks on unknown ads": 1,
        "rows without a session": 2,
        "rows without a time": 2,
        "rows without a query": 1,
        "rows of validation and test queries": 1,
        "sessions": 1,
    }


def test_a_huge_session_is_truncated_not_squared(known: KnownNodes) -> None:
    draw = np.random.default_rng(0)
    num_events = 200_000
    events = pa.table(
        {
            "session": np.full(num_events, 7, dtype=np.uint64),
            "time": np.arange(num_events, dtype=np.float64)[::-1] / 100,
            "query": draw.permutation(num_events).astype(np.uint64) + np.uint64(1),
            "ad": np.zeros(num_events, dtype=np.uint64),
            "is_node": np.ones(num_events, dtype=bool),
        }
    )
    pairs, notes = count_pairs(events, SessionSettings())
    assert notes == {"sessions": 1, "sessions cut": 1, "events dropped": num_events - 100}
    assert len(pairs) == 100 * 100
    first = set(events["query"].to_numpy()[-100:].tolist())
    assert set(pairs["node"].to_pylist()) == first


def test_many_pairs_are_counted_in_several_batches(
    known: KnownNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    rows = [
        Row(f"s{draw.integers(30)}", float(draw.integers(50)), TRAIN[draw.integers(3)], "a0")
        for _ in range(300)
    ]
    whole = _edges(rows, known, SessionSettings(window_s=5), 1)
    monkeypatch.setattr("ramen_ray.data.graphs.sessions.PAIRS_AT_ONCE", 60)
    assert _edges(rows, known, SessionSettings(window_s=5), 1) == whole


@pytest.mark.parametrize(
    "wrong",
    [{"top_k": 0}, {"window_s": -1.0}, {"max_session_length": 1}, {"query_set": "co_click"}],
)
def test_settings_that_leave_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match=next(iter(wrong))):
        SessionSettings(**wrong)
