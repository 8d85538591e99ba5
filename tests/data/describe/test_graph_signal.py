"""What an anchor set could bring, against plain loops, and how its figures are read."""

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import node_edges, query_table, text_table
from written_out import column_of

from ramen_ray.data.describe.counts import count_clicks, count_edges
from ramen_ray.data.describe.graph_signal import graph_signals
from ramen_ray.data.store.dataset import write_dataset

TEXTS = ["red shoes", "Shoes, blue", "hat", "a HAT shop", "gloves", "(red) gloves", "silk-tie"]


def _signals(dataset):
    clicks = {split: count_clicks(dataset, split) for split in dataset.splits}
    edges = {name: count_edges(dataset, name) for name in dataset.anchor_sets}
    return graph_signals(dataset, clicks, edges)


def _words(text):
    return set(re.findall(r"\w+", text.lower()))


def _edges_by_node(dataset, name, side):
    found = {}
    if dataset.has(f"edges/{name}/{side}"):
        for edge in dataset.read(f"edges/{name}/{side}").to_pylist():
            found.setdefault(edge[f"{side}_id"], set()).add(edge["anchor_id"])
    return found


def _shared_by_loops(of_query, of_ad, clicks):
    """Clicks with edges at both ends, those that share an anchor, and the exact expectation."""
    linked = [(q, ad) for q, ad in clicks if q in of_query and ad in of_ad]
    shared = sum(bool(of_query[q] & of_ad[ad]) for q, ad in linked)
    any_ad = [bool(of_query[q] & of_ad[ad]) for q, _ in linked for _, ad in linked]
    return len(linked), shared, sum(any_ad) / max(len(linked), 1)


@st.composite
def _tables(draw):
    def lists(count, below, least):
        ids = st.lists(st.integers(0, below - 1), min_size=least, max_size=3, unique=True)
        return draw(st.lists(ids, min_size=count, max_size=count))

    texts = st.lists(st.sampled_from(TEXTS), min_size=6, max_size=6)
    tables = {"ads": text_table("ad_id", draw(texts))}
    clicks = lists(6, 6, 0)
    clicks[0] = clicks[0] or [1]
    tables["queries/train"] = query_table(draw(texts), clicks)
    for split in ("validation", "test"):
        tables[f"queries/{split}"] = query_table(draw(texts), lists(6, 6, 1))
    tables["anchors/links"] = text_table("anchor_id", TEXTS)
    for side in draw(st.sampled_from([["query", "ad"], ["query"], ["ad"]])):
        linked = [[0], *lists(5, len(TEXTS), 0)]
        tables[f"edges/links/{side}"] = node_edges(f"{side}_id", linked)
    shuffled = draw(st.randoms(use_true_random=False))
    return {
        name: rows.take(shuffled.sample(range(len(rows)), len(rows)))
        for name, rows in tables.items()
    }


@settings(max_examples=8)
@given(tables=_tables())
def test_signals_are_those_of_plain_loops(tables):
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "made", tables, name="made")
        found = _signals(dataset)["links"]
        of_query, of_ad = (_edges_by_node(dataset, "links", side) for side in ("query", "ad"))
        rows = {split: dataset.read(f"queries/{split}").to_pylist() for split in ("train", "test")}
        texts = {row["ad_id"]: row["text"] for row in dataset.read("ads").to_pylist()}
    clicks = {s: [(r["query_id"], ad) for r in rows[s] for ad in r["ad_ids"]] for s in rows}
    queries = {row["query_id"]: row["text"] for row in rows["train"]}
    trained = {ad for _, ad in clicks["train"]}
    assert found.test_clicks == len(clicks["test"])
    assert found.reached_clicks == sum(
        ad not in trained and ad in of_ad for _, ad in clicks["test"]
    )
    assert found.edges_per_query == sum(map(len, of_query.values())) / 6
    assert found.edges_per_ad == sum(map(len, of_ad.values())) / 6
    if not (of_query and of_ad):
        return
    beyond = [(q, ad) for q, ad in clicks["train"] if not _words(queries[q]) & _words(texts[ad])]
    for shared, chosen in ((found.shared, clicks["train"]), (found.shared_beyond_words, beyond)):
        linked, expected, _ = _shared_by_loops(of_query, of_ad, chosen)
        assert (shared.pairs, shared.shared) == (linked, expected)
        assert 0 <= shared.by_chance <= linked


def _dataset(path, clicks, num_ads, anchors, **edges):
    """Train queries with these clicks; the ``edges`` of each side are to one set's anchors."""
    tables = {
        "ads": text_table("ad_id", [f"ad{n}" for n in range(num_ads)]),
        "queries/train": query_table([f"q{n}" for n in range(len(clicks))], clicks),
        "anchors/links": text_table("anchor_id", anchors),
    }
    for side, of_nodes in edges.items():
        tables[f"edges/links/{side}"] = node_edges(f"{side}_id", of_nodes)
    for split in ("validation", "test"):
        tables[f"queries/{split}"] = query_table([f"{split} query"], [[0]])
    return write_dataset(path, tables, name="made")


def _random_clicks(path, tied):
    """300 queries and 40 ads with an anchor each; if ``tied``, a click is on an ad that shares."""
    draw = np.random.default_rng(0)
    anchor_of_query = draw.integers(0, 8, 300)
    anchor_of_ad = np.arange(40) % 8
    ads = draw.integers(0, 40, 300)
    if tied:
        ads = anchor_of_query + 8 * draw.integers(0, 5, 300)
    anchors = [f"anchor{n}" for n in range(8)]
    query, ad = ([[anchor] for anchor in of] for of in (anchor_of_query, anchor_of_ad))
    return _dataset(path, [[ad] for ad in ads], 40, anchors, query=query, ad=ad)


@pytest.mark.parametrize("tied", [True, False])
def test_shuffles_find_the_share_that_chance_would_have(tied, tmp_path):
    dataset = _random_clicks(tmp_path / "clicks", tied)
    signal = _signals(dataset)["links"]
    assert signal.is_void == tied, "it was made from the clicks"
    found = signal.shared
    ads = column_of(dataset, "queries/train", "ad_ids")
    clicks = [(query, ad) for query, (ad,) in enumerate(ads)]
    of_query, of_ad = (_edges_by_node(dataset, "links", side) for side in ("query", "ad"))
    _, shared, by_chance = _shared_by_loops(of_query, of_ad, clicks)
    assert found.by_chance == pytest.approx(by_chance, rel=0.1)
    assert found.lift == pytest.approx(shared / by_chance, rel=0.1)
    assert (found.lift > 7) == tied


ONE_SIDED = {
    "co-click of clicked together": ("ad", [[n ^ 1] for n in range(20)], 20),
    "half of a co-click": ("ad", [[n ^ 1, (n + 4) % 20] for n in range(20)], 40),
    "co-session": ("query", [[(n + 20) % 40] for n in range(40)], 40),
}


@pytest.mark.parametrize("case", ONE_SIDED)
def test_a_set_of_one_side_is_measured_by_the_pairs_that_it_joins(case, tmp_path):
    """Anchors have the texts of nodes; ads n and n ^ 1 are clicked together."""
    side, edges, count = ONE_SIDED[case]
    clicks = [[n // 2, n // 2 ^ 1] for n in range(40)]
    anchors = [f"{'q' if side == 'query' else 'AD'}{node}" for node in range(len(edges))]
    dataset = _dataset(tmp_path / "one", clicks, 20, anchors, **{side: edges})
    signal = _signals(dataset)["links"]
    assert signal.sides == (side,)
    clicked = [set(ads) for ads in clicks]
    if side == "ad":
        clicked = [{q for q, ads in enumerate(clicks) if ad in ads} for ad in range(20)]
    joined = [(node, anchor) for node, linked in enumerate(edges) for anchor in linked]
    together = sum(bool(clicked[left] & clicked[right]) for left, right in joined)
    assert (signal.shared.pairs, signal.shared.shared) == (count, together)
    assert signal.is_void == (case == "co-click of clicked together")
