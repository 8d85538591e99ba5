"""What an anchor set could bring, against plain loops, and how its figures are read."""

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_datasets import random_dataset
from support import node_edges, query_table, text_table

from ramen_ray.data.describe.counts import count_degrees
from ramen_ray.data.describe.graph_signal import graph_signals
from ramen_ray.data.engine import engine
from ramen_ray.data.store.dataset import write_dataset


def _signals(dataset):
    with engine(dataset.path, dataset=dataset) as connection:
        return graph_signals(connection, dataset, count_degrees(connection, dataset))


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


@settings(max_examples=3)
@given(st.integers(0, 999))
def test_signals_are_those_of_plain_loops(seed):
    with tempfile.TemporaryDirectory() as folder:
        dataset = random_dataset(Path(folder) / "made", seed, last_ad="(TRAIN), ad-3")
        rows = {split: dataset.read(f"queries/{split}").to_pylist() for split in ("train", "test")}
        texts = {row["ad_id"]: row["text"] for row in dataset.read("ads").to_pylist()}
        linked = {
            name: [_edges_by_node(dataset, name, side) for side in ("query", "ad")]
            for name in dataset.anchor_sets
        }
        signals = _signals(dataset)
    clicks = {s: [(r["query_id"], ad) for r in rows[s] for ad in r["ad_ids"]] for s in rows}
    queries = {row["query_id"]: row["text"] for row in rows["train"]}
    trained = {ad for _, ad in clicks["train"]}
    beyond = [(q, ad) for q, ad in clicks["train"] if not _words(queries[q]) & _words(texts[ad])]
    for name, (of_query, of_ad) in linked.items():
        signal = signals[name]
        reached = [ad not in trained and ad in of_ad for _, ad in clicks["test"]]
        assert (signal.test_clicks, signal.reached_clicks) == (len(reached), sum(reached))
        assert signal.edges_per_query == sum(map(len, of_query.values())) / len(queries)
        assert signal.edges_per_ad == sum(map(len, of_ad.values())) / len(texts)
        if of_query and of_ad:
            for shared, chosen in (
                (signal.shared, clicks["train"]),
                (signal.shared_beyond_words, beyond),
            ):
                pairs, expected, _ = _shared_by_loops(of_query, of_ad, chosen)
                assert (shared.pairs, shared.shared) == (pairs, expected)
                assert 0 <= shared.by_chance <= pairs


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


@pytest.mark.parametrize("tied", [True, False])
def test_shuffles_find_the_share_that_chance_would_have(tied, tmp_path):
    """Queries and ads have an anchor each; if ``tied``, a click is on an ad that shares it."""
    draw = np.random.default_rng(0)
    anchor_of_query = draw.integers(0, 8, 300)
    ads = draw.integers(0, 40, 300)
    if tied:
        ads = anchor_of_query + 8 * draw.integers(0, 5, 300)
    query = [[anchor] for anchor in anchor_of_query.tolist()]
    ad = [[number % 8] for number in range(40)]
    anchors = [f"anchor{number}" for number in range(8)]
    dataset = _dataset(tmp_path / "clicks", [[ad] for ad in ads], 40, anchors, query=query, ad=ad)
    signal = _signals(dataset)["links"]
    assert signal.is_void == tied, "it was made from the clicks"
    found = signal.shared
    clicks = [*enumerate(ads.tolist())]
    of_query, of_ad = ({n: {*row} for n, row in enumerate(rows)} for rows in (query, ad))
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
