"""The walk against a dense matrix and a plain walk; its cache."""

import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from support import NUM_CPUS, csr_of, rows_of, wait_until

from ramen_ray.data.arrays import keyed_hash
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import DamagedError
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited
from ramen_ray.method.sampling.training_data import Regularizer
from ramen_ray.orchestration.prepare import walks
from ramen_ray.orchestration.prepare.walks import walked_edges

SHORT = WalkSettings(num_hops=50, restart_probability=0.5, max_anchor_degree=20, top_k=3)
EVERYTHING = WalkSettings(num_hops=50_000, restart_probability=0.8, max_anchor_degree=99, top_k=99)
REGULARIZERS = [Regularizer(name, side) for name in ("links", "topics") for side in ("query", "ad")]


def _rows(num_rows, num_columns):
    row = st.sets(st.integers(0, num_columns - 1)).map(sorted)
    return st.lists(row, min_size=num_rows, max_size=num_rows)


@given(_rows(6, 5), st.integers(0, 6), st.booleans())
def test_a_graph_has_the_edges_of_all_but_head_anchors_in_both_directions(
    tmp_path_factory, rows, most, in_files
):
    degrees = Counter(anchor for row in rows for anchor in row)
    kept = [[anchor for anchor in row if degrees[anchor] <= most] for row in rows]
    reverse = [
        [n for n, row in enumerate(kept) if a in row] for a in range(1 + max(degrees, default=-1))
    ]
    folder = tmp_path_factory.mktemp("graph") if in_files else None
    graph = WalkGraph.from_edges(csr_of(rows), most, folder)
    if folder is not None:
        graph = WalkGraph.open(folder)
    assert rows_of(graph.forward) == kept
    assert rows_of(graph.backward) == reverse


def _walked(graph, how, seed=0):
    """Return each node's anchors with their counts."""
    edges = most_visited(graph, 0, graph.forward.num_rows, how, seed)
    counts = iter(np.diff(edges.cumulative_weights).tolist())
    return [{anchor: next(counts) for anchor in row} for row in rows_of(edges)]


def _plain(forward, backward, node, how, seed):
    """Walk hop by hop with Python's integers."""

    def neighbour(rows, row, number):
        return rows[row][number * len(rows[row]) >> 32] if rows[row] else None

    numbers = keyed_hash((seed, node), np.arange(2 * how.num_hops)).tolist()
    visits = Counter()
    here = node
    for first, second in zip(numbers[::2], numbers[1::2], strict=True):
        if (first >> 32) / 2**32 < how.restart_probability:
            here = node
        visited = None
        if (anchor := neighbour(forward, here, first % 2**32)) is not None:
            there = neighbour(backward, anchor, second >> 32)
            if there is not None:
                visited = neighbour(forward, there, second % 2**32)
        if visited is None:
            here = node
        else:
            here = there
            visits[visited] += 1
    ranks = keyed_hash((seed, node), np.arange(len(backward))).tolist()
    most = sorted(visits.items(), key=lambda item: (-item[1], ranks[item[0]]))[: how.top_k]
    return dict(sorted(most))


def _transition(rows, num_columns):
    dense = np.zeros((len(rows), num_columns))
    for row, columns in enumerate(rows):
        dense[row, columns] = 1
    return dense / dense.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("restart", [0.8, 0.3])
def test_visits_follow_the_stationary_distribution(restart):
    draw = np.random.default_rng(0)
    rows = [sorted(draw.choice(8, size=draw.integers(1, 5), replace=False)) for _ in range(12)]
    columns = [[n for n, row in enumerate(rows) if a in row] for a in range(8)]
    to_anchors, to_nodes = _transition(rows, 8), _transition(columns, 12)
    hop = to_anchors @ to_nodes
    leaves = restart * np.linalg.inv(np.eye(12) - (1 - restart) * hop)
    expected = leaves @ hop @ to_anchors
    how = WalkSettings(EVERYTHING.num_hops, restart, 99, 99)
    # hops k apart are correlated by at most (1 - restart)^k
    effective_hops = how.num_hops / (1 + 2 * (1 - restart) / restart)
    error = np.sqrt(expected * (1 - expected) / effective_hops)
    for node, counts in enumerate(_walked(WalkGraph.from_edges(csr_of(rows), 99), how)):
        assert sum(counts.values()) == how.num_hops
        found = np.array([counts.get(anchor, 0) for anchor in range(8)]) / how.num_hops
        assert (np.abs(found - expected[node]) <= 5 * error[node] + 1e-9).all()


@given(
    *(_rows(7, 5), _rows(5, 7)),
    *(st.integers(1, 60), st.floats(0.01, 0.99), st.integers(1, 6), st.integers(0, 2**63 - 1)),
)
def test_it_walks_as_a_plain_loop_does_dead_ends_and_ties_included(
    forward, backward, num_hops, restart, top_k, seed
):
    """The two directions are drawn apart here, so that anchors and nodes can be dead ends."""
    how = WalkSettings(num_hops, restart, 99, top_k)
    found = _walked(WalkGraph(csr_of(forward), csr_of(backward)), how, seed)
    assert found == [_plain(forward, backward, node, how, seed) for node in range(7)]


@pytest.fixture
def walked_here(monkeypatch):
    """Let this process walk, in which the walk is compiled already."""
    monkeypatch.setattr(walks, "in_tasks", lambda tasks, *_: [task() for task in tasks])


def test_each_walk_is_made_once(walked_here, prepared, prepared_bag, tmp_path, monkeypatch, caplog):
    made = []
    walk = walks._walk
    monkeypatch.setattr(walks, "_walk", lambda *a: (made.append([*a[1]]), walk(*a)))
    monkeypatch.setattr(walks, "NODES_PER_TASK", 7)
    with ThreadPoolExecutor(2) as pool:
        given = prepared, REGULARIZERS[:1], SHORT, 3, tmp_path
        futures = [pool.submit(walked_edges, *given) for _ in range(2)]
    (folder,) = {future.result() for future in futures}
    assert made == [["links/query"]]
    assert walked_edges(prepared, REGULARIZERS, SHORT, 3, tmp_path) == folder
    assert walked_edges(prepared, REGULARIZERS[::-1], SHORT, 3, tmp_path) == folder
    assert made[1:] == [["links/ad", "topics/ad", "topics/query"]]
    assert walked_edges(prepared_bag, REGULARIZERS, SHORT, 3, tmp_path) == folder
    assert len(made) == 2
    assert {path.name for path in folder.glob("*/[!.]*")} == {"query", "ad"}
    changed = Prepared(shutil.copytree(prepared.path, tmp_path / "changed"))
    changed.edges("links", "ad").save(changed.path / "edges" / "topics" / "ad")
    assert walked_edges(changed, [], SHORT, 3, tmp_path) != folder
    other = WalkSettings(50, 0.6, 20, 3)
    assert walked_edges(prepared, [], SHORT, 4, tmp_path) != folder
    assert walked_edges(prepared, [], other, 3, tmp_path) != folder
    (folder / "topics" / "ad" / "indices.npy").write_bytes(b"")
    assert walked_edges(prepared, REGULARIZERS, SHORT, 3, tmp_path) == folder
    assert made[-1] == ["topics/ad"]
    assert "indices.npy" in caplog.text
    for regularizer in REGULARIZERS:
        graph = WalkGraph.from_edges(prepared.edges(*regularizer), 20)
        found = Csr.open(folder / regularizer.path)
        expected = most_visited(graph, 0, graph.forward.num_rows, SHORT, 3)
        assert rows_of(found) == rows_of(expected)
        assert np.array_equal(found.cumulative_weights, expected.cumulative_weights)


def test_a_failed_walk_leaves_no_files_and_no_tasks(cluster, prepared, tmp_path, monkeypatch):
    def fail_at_first(graph, nodes, *_):
        if nodes[0] == 0:
            raise MemoryError
        time.sleep(0.2)

    monkeypatch.setattr(walks, "_walk_range", fail_at_first)
    monkeypatch.setattr(walks, "NODES_PER_TASK", 7)
    with pytest.raises(MemoryError):
        walked_edges(prepared, REGULARIZERS, SHORT, 3, tmp_path)
    assert not list(tmp_path.glob("*/*/[!.]*"))
    wait_until(
        lambda: ray.available_resources().get("CPU") == NUM_CPUS, "tasks are still under way"
    )


def test_a_graph_that_changes_while_it_is_walked_leaves_nothing(
    walked_here, prepared, tmp_path, monkeypatch
):
    copied = Prepared(shutil.copytree(prepared.path, tmp_path / "copied"))
    run = walks.in_tasks
    topics = copied.path / "edges" / "topics" / "ad"

    def change_after(*arguments):
        done = run(*arguments)
        copied.edges("links", "ad").save(topics)
        return done

    monkeypatch.setattr(walks, "in_tasks", change_after)
    with pytest.raises(DamagedError, match="edges"):
        walked_edges(copied, REGULARIZERS, SHORT, 3, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/*/[!.]*"))
