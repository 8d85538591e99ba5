"""Edges that join a query to its answer are left out of graphs or kept, as loops find."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import query_table, text_table, write_rows
from written_out import clicked_pairs, column_of, edges_of, plain

from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.tables.graphs.edges import EdgeList, add_edge_list
from ramen_ray.data.tables.graphs.session_events import SessionLog
from ramen_ray.data.tables.graphs.sessions import SessionSettings, add_co_session
from ramen_ray.method.graph.similar import SimilarSettings
from ramen_ray.orchestration.prepare.similar_set import add_similar

PROTOCOLS = ("strict", "as-published")
ADS = ["Shoe  shop", "hat shop", "silk", "Silk Tie", "gloves", "new sleeves"]
QUERIES = {
    "train": (
        ["red shoes", "shoe shop", "HAT SHOP", "gloves", "silk tie"],
        [[0], [2], [1, 3], [4], [2]],
    ),
    "validation": (["silk"], [[0, 3]]),
    "test": (["silk tie", "wool hat"], [[1], [1, 4]]),
    "zero_shot": (["Ärmel"], [[5]]),
}
ANCHORS = ["SILK", "shoe shop", "hat  Shop", "Wool Hat", "silk tie", "felt", "gloves", "ÄRMEL"]


def _held_out_pairs(dataset):
    """The texts of each held-out query and its answers, in both orders."""
    clicks = clicked_pairs(dataset, *dataset.splits[1:])
    pairs = {(plain(query), plain(ad)) for query, ad in clicks}
    return pairs | {(answer, query) for query, answer in pairs}


def _edges(dataset, name):
    """Side, node and anchor of all edges; nodes of equal text have equal edges."""
    sides = [side for side in ("query", "ad") if dataset.has(f"edges/{name}/{side}")]
    found = {(side, *edge) for side in sides for edge in edges_of(dataset, name, side)}
    assert {anchor for _, _, anchor in found} == set(column_of(dataset, f"anchors/{name}"))
    return found


def _leaking(edges, pairs):
    return {edge for edge in edges if (plain(edge[1]), plain(edge[2])) in pairs}


@pytest.fixture
def shop(tmp_path):
    tables = {f"queries/{split}": query_table(*rows) for split, rows in QUERIES.items()}
    tables["ads"] = text_table("ad_id", ADS)
    tables["novel_ads"] = pa.table({"ad_id": [5]})
    # of one query, silk tie, only later clicks are held out
    path = write_dataset(tmp_path / "shop", tables, name="shop", held_out_from="2026-10-01").path
    for file in path.rglob("*.parquet"):  # a user's own column, called as one of the engine is
        rows = pq.read_table(file)
        pq.write_table(rows.append_column("folded", pa.array(["mine"] * len(rows))), file)
    return path


NODES = {"query": QUERIES["train"][0], "ad": ADS}
EDGE_ROWS = st.lists(
    st.tuples(st.sampled_from(["query", "ad"]), st.integers(0, 9), st.sampled_from(ANCHORS)),
    min_size=1,
)


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=EDGE_ROWS, listed=st.booleans())
def test_a_users_edges_are_strict_by_default(rows, listed, shop, tmp_path):
    rows = [*rows, ("query", 0, "felt")]
    edges = {(side, NODES[side][n % len(NODES[side])], anchor) for side, n, anchor in rows}
    leaking = _leaking(edges, _held_out_pairs(Dataset(shop)))
    tables = {}
    for side in {side for side, _, _ in edges}:
        names = {"query": "query anchor", "ad": "ad_id anchor"}[side]
        links = [
            (node, ANCHORS.index(anchor) if listed else anchor)
            for of_side, node, anchor in sorted(edges)
            if of_side == side
        ]
        tables[f"{side}_edges"] = write_rows(tmp_path / f"{side}.csv", names, links)
    if listed:
        anchors = tmp_path / "anchors.csv"
        tables["anchors"] = write_rows(anchors, "anchor_id text", enumerate(ANCHORS))
    for protocol, expected in (("strict", edges - leaking), ("as-published", edges)):
        counts = add_edge_list(shop, "mine", EdgeList(**tables, protocol=protocol), replace=True)
        assert _edges(Dataset(shop), "mine") == expected
        left_out = sum(count for what, count in counts.items() if "held-out query" in what)
        assert left_out == len(edges) - len(expected)
    made = Dataset(shop).metadata["anchor_sets"]["mine"]
    assert made["settings"]["protocol"] == "as-published"


def test_similar_texts_of_a_held_out_query_and_its_answer_are_not_linked(copied, encoder_path):
    dataset = Dataset(copied)
    was_started = ray.is_initialized()
    for protocol in PROTOCOLS:
        add_similar(
            copied, protocol, SimilarSettings(str(encoder_path), top_k=9, protocol=protocol)
        )
    strict, published = (_edges(dataset, protocol) for protocol in PROTOCOLS)
    leaking = _leaking(published, _held_out_pairs(dataset))
    assert leaking
    assert strict == published - leaking
    assert ray.is_initialized() == was_started, "few texts are embedded in this process"


def test_what_one_session_has_of_a_held_out_click_is_not_linked(shop, tmp_path):
    visits = [*(("red shoes", ad) for ad in ADS), ("gloves", "hat shop")]
    visits += [("silk tie", "silk"), ("HAT SHOP", "silk"), ("silk", "silk")]
    log = [(n // 10, 1_700_000_000 + 10 * n, *visit) for n, visit in enumerate(3 * visits)]
    source = SessionLog(write_rows(tmp_path / "log.csv", "session_id time query ad_id", log))
    found = {}
    counts = {}
    for protocol in PROTOCOLS:
        wanted = SessionSettings(protocol=protocol)
        counts[protocol] = add_co_session(shop, source, wanted, replace=True)
        sets = [_edges(Dataset(shop), name) for name in ("co_session", "co_click")]
        found[protocol] = sets[0] | sets[1]
    leaking = _leaking(found["as-published"], _held_out_pairs(Dataset(shop)))
    assert found["strict"] == found["as-published"] - leaking
    for side, number in {"query": 2, "ad": 6}.items():
        count = f"{side} edges that join a held-out query to its answer"
        assert counts["strict"][count] == len({edge for edge in leaking if edge[0] == side})
        assert counts["strict"][count] == number
    assert ("query", "silk tie", "red shoes") in found["strict"]
