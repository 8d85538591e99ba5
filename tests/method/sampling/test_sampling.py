"""The draws: the same global batches for any number of workers, and the right distributions."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support import csr_of, rows_of

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.sampling.draws import Graphs, Regularizer, draw, epoch_order, num_steps

NUM_EPOCHS = 400
SIDES = ("query", "ad")
REGULARIZERS = [Regularizer(name, side) for name in ("links", "topics") for side in SIDES]


@st.composite
def shapes(draw_value):
    """Number of queries, batch size (a multiple of 4, not larger), seed and epoch."""
    batch_size = 4 * draw_value(st.integers(1, 8))
    num_queries = batch_size + draw_value(st.integers(0, 150))
    return num_queries, batch_size, draw_value(st.integers(0, 50)), draw_value(st.integers(0, 50))


def _orders_of_workers(num_queries, batch_size, seed, epoch, num_workers):
    share = batch_size // num_workers
    lanes = [range(rank * share, (rank + 1) * share) for rank in range(num_workers)]
    return [epoch_order(num_queries, batch_size, own, seed, epoch) for own in lanes]


@given(shapes(), st.sampled_from([2, 4]))
def test_workers_together_order_the_queries_as_one_does(shape, num_workers):
    orders = _orders_of_workers(*shape, num_workers)
    (whole,) = _orders_of_workers(*shape, 1)
    assert np.concatenate(orders, axis=1).tolist() == whole.tolist()
    shares = [set(order.flatten().tolist()) for order in orders]
    for before, after in pairwise(shares):
        assert max(before) < min(after)


@given(shapes())
def test_an_epoch_takes_each_query_at_most_once_and_leaves_out_the_remainder(shape):
    num_queries, batch_size, _, _ = shape
    (order,) = _orders_of_workers(*shape, 1)
    rows = order.flatten().tolist()
    assert order.shape == (num_steps(num_queries, batch_size), batch_size)
    assert len(rows) == num_queries - num_queries % batch_size
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(range(num_queries))


def test_orders_differ_between_epochs_and_seeds_but_repeat_for_the_same_ones():
    orders = {
        (seed, epoch): epoch_order(101, 8, range(8), seed, epoch).tobytes()
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == len(orders)
    assert epoch_order(101, 8, range(8), 1, 2).tobytes() == orders[1, 2]


def test_no_query_is_left_out_forever():
    taken = set()
    for epoch in range(40):
        taken |= set(epoch_order(103, 8, range(8), 0, epoch).flatten().tolist())
    assert taken == set(range(103))


@pytest.mark.parametrize("num_workers", [2, 4])
def test_global_batches_of_draws_do_not_depend_on_the_workers(prepared: Prepared, num_workers):
    graphs = {one: prepared.edges(*one) for one in REGULARIZERS}
    ids, clicks = prepared.query_ids, prepared.clicks["train"]
    (whole,) = _orders_of_workers(len(ids), 16, 3, 5, 1)
    for step, rows in enumerate(whole):
        expected = draw(rows, ids[rows], clicks, graphs, (3, 5))
        parts = [
            draw(order[step], ids[order[step]], clicks, graphs, (3, 5))
            for order in _orders_of_workers(len(ids), 16, 3, 5, num_workers)
        ]
        assert np.concatenate(parts).tolist() == expected.tolist()


def test_a_draw_belongs_to_its_query_and_follows_its_clicks_and_edges(prepared: Prepared):
    graphs = {one: prepared.edges(*one) for one in REGULARIZERS}
    clicks = prepared.clicks["train"]
    rows = np.arange(len(prepared.query_ids))
    found = draw(rows, prepared.query_ids, clicks, graphs, (0, 0))
    backwards = draw(rows[::-1], prepared.query_ids[::-1], clicks, graphs, (0, 0))
    assert found.tolist() == backwards[::-1].tolist()
    ads_of = rows_of(clicks)
    assert found[:, 0].tolist() == rows.tolist()
    assert all(ad in ads_of[row] for row, ad in enumerate(found[:, 1].tolist()))
    for column, (regularizer, edges) in enumerate(graphs.items(), start=2):
        nodes, anchors = found[:, SIDES.index(regularizer.side)], rows_of(edges)
        for node, anchor in zip(nodes.tolist(), found[:, column].tolist(), strict=True):
            assert anchor in (anchors[node] or [-1])
        assert (found[:, column] == -1).any()


def _epochs(clicks: Csr, graphs: Graphs, seed: int = 0) -> np.ndarray:
    """Draws of 10 copies of query row 0 in many epochs."""
    rows, ids = np.zeros(10, dtype=np.int64), np.arange(10)
    return np.concatenate(
        [draw(rows, ids, clicks, graphs, (seed, epoch)) for epoch in range(NUM_EPOCHS)]
    )


def test_ads_are_drawn_uniformly_and_anchors_by_weight():
    clicks = csr_of([[0, 1, 2, 4, 7]])
    weights = np.array([1.0, 2.0, 5.0, 0.5])
    query_edges = Csr.from_pairs(np.zeros(4, int), np.array([3, 1, 0, 6]), 1, weights)
    ad_edges = csr_of([[0, 2, 5]] * 8)
    drawn = _epochs(clicks, dict(zip(REGULARIZERS, (query_edges, ad_edges), strict=False)))
    expected = [
        {0: 1, 1: 1, 2: 1, 4: 1, 7: 1},
        {3: 1.0, 1: 2.0, 0: 5.0, 6: 0.5},
        {0: 1, 2: 1, 5: 1},
    ]
    for column, shares in enumerate(expected, start=1):
        ids, counts = np.unique(drawn[:, column], return_counts=True)
        assert ids.tolist() == sorted(shares)
        share = np.array([shares[i] for i in ids.tolist()])
        assert stats.chisquare(counts, share / share.sum() * len(drawn)).pvalue > 0.01


def test_the_draws_of_one_query_are_independent_of_each_other():
    clicks, edges = csr_of([[0, 1, 2, 3]]), csr_of([[0, 1, 2, 3]] * 4)
    drawn = _epochs(clicks, dict.fromkeys(REGULARIZERS, edges))
    for one, other in combinations(range(1, 6), 2):
        table = stats.contingency.crosstab(drawn[:, one], drawn[:, other]).count
        assert stats.chi2_contingency(table).pvalue > 0.001


def test_draws_change_with_the_seed_and_the_epoch():
    clicks = csr_of([range(50)])
    one, other = (_epochs(clicks, {}, seed)[:, 1] for seed in (0, 1))
    assert (one != other).mean() > 0.9
    by_epoch = one.reshape(NUM_EPOCHS, 10)
    assert (by_epoch[1:] != by_epoch[:-1]).mean() > 0.9


def test_nodes_without_edges_draw_minus_one():
    clicks = csr_of([[1], [0]])
    graphs = dict(zip(REGULARIZERS, (csr_of([[], [4]]), csr_of([[2], []])), strict=False))
    drawn = draw(np.array([0, 1]), np.array([0, 1]), clicks, graphs, (0, 0))
    assert drawn.tolist() == [[0, 1, -1, -1], [1, 0, 4, 2]]
