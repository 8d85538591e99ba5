"""The draws: the same global batches for any number of workers, and the right distributions."""

from functools import partial
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support import csr_of, rows_of

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method import distributed
from ramen_ray.method.sampling.batches import (
    Clusters,
    Sampler,
    SamplingSources,
    clustered_order,
    draw_ads,
    random_order,
)
from ramen_ray.method.sampling.training_data import Regularizer, TrainingData

NUM_EPOCHS = 400
SIDES = ("query", "ad")
REGULARIZERS = [Regularizer(name, side) for name in ("links", "topics") for side in SIDES]


@st.composite
def epochs(draw_value):
    """How many queries there are, a batch size, and their order, at random or in clusters."""
    batch_size = 4 * draw_value(st.integers(1, 8))
    num_queries = batch_size + draw_value(st.integers(0, 150))
    seed = draw_value(st.integers(0, 50))
    order = partial(random_order, num_queries)
    if draw_value(st.booleans()):
        few = st.sampled_from([1, 4, num_queries // batch_size])
        num_clusters = draw_value(few | st.integers(1, num_queries))
        rows = np.random.default_rng(seed).permutation(num_queries)
        order = partial(clustered_order, Clusters(rows, num_clusters))
    epoch = draw_value(st.integers(0, 50))
    return num_queries, batch_size, lambda slots: order(batch_size, slots, seed, epoch)


@given(epochs(), st.sampled_from([2, 3, 4]))
def test_an_epoch_takes_each_query_once_but_a_remainder_whatever_the_workers(epoch, num_workers):
    num_queries, batch_size, order = epoch
    whole = order(range(batch_size))
    ends = [rank * batch_size // num_workers for rank in range(num_workers + 1)]
    parts = [order(range(*bounds)) for bounds in pairwise(ends)]
    assert np.concatenate(parts, axis=1).tolist() == whole.tolist()
    rows = whole.flatten().tolist()
    assert whole.shape == (num_queries // batch_size, batch_size)
    assert len(set(rows)) == len(rows) == num_queries - num_queries % batch_size
    assert set(rows) <= set(range(num_queries))


def test_in_random_order_a_worker_needs_only_its_share_of_the_queries():
    shares = [random_order(103, 8, range(place, place + 2), 3, 5) for place in range(0, 8, 2)]
    assert all(before.max() < after.min() for before, after in pairwise(shares))


def test_orders_change_with_epoch_and_seed_and_leave_no_query_out_forever():
    orders = {
        (seed, epoch): random_order(103, 8, range(8), seed, epoch)
        for seed in range(2)
        for epoch in range(40)
    }
    assert len({order.tobytes() for order in orders.values()}) == len(orders)
    assert random_order(103, 8, range(8), 1, 2).tolist() == orders[1, 2].tolist()
    taken = np.concatenate([order for (seed, _), order in orders.items() if seed == 0])
    assert set(taken.flatten().tolist()) == set(range(103))


def _columns(batch):
    """Lay a batch out as one row a slot: query, ad, hard negatives, and of each graph two ends."""
    ends = [column for drawn in batch.anchors.values() for column in drawn]
    return np.column_stack([batch.queries, batch.ads, batch.hard_negatives, *ends])


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize(
    ("clustered", "nodes"), [(False, "all"), (False, "rare"), (True, "clicked")]
)
def test_batches_do_not_depend_on_the_workers(prepared, num_workers, clustered, nodes, monkeypatch):
    data = TrainingData.from_prepared(prepared, REGULARIZERS)
    num_queries = len(data.query_ids)
    draw = np.random.default_rng(0)
    clusters = Clusters(draw.permutation(num_queries), 8) if clustered else None
    shortlists = draw.integers(0, 40, size=(num_queries, 9), dtype=np.int32)
    sources = SamplingSources(data.graphs, clusters, shortlists)

    def draws_of(rank, world_size):
        monkeypatch.setattr(distributed, "world", lambda: (rank, world_size))
        sampler = Sampler(data, 16, seed=3, num_hard_negatives=2, nodes=nodes)
        steps = range(2 * sampler.steps_per_epoch)
        return [_columns(sampler.draw(step, sources, REGULARIZERS)) for step in steps]

    whole = draws_of(0, 1)
    parts = [draws_of(rank, num_workers) for rank in range(num_workers)]
    for step, expected in enumerate(whole):
        assert np.concatenate([part[step] for part in parts]).tolist() == expected.tolist()
        assert expected.shape == (16, 1 + 1 + 2 + 4 + 4)


NODES = {
    "all": ({0: 1, 1: 1, 3: 1}, {0: 1, 1: 1, 2: 1, 4: 1}),  # which have edges, clicked or not
    "rare": ({0: 1 / 3, 1: 1 / 2, 3: 1}, {0: 1 / 2, 1: 1 / 4, 2: 1, 4: 1}),
    "clicked": ({0: 1, 1: 1, 2: 1}, {0: 1, 1: 5}),  # as the batch has them
}
"""How often each query and each ad is drawn for a graph."""


@pytest.mark.parametrize("nodes", NODES)
def test_nodes_of_graphs_are_drawn_as_it_is_asked_for_and_their_anchors_alike(nodes):
    clicks = csr_of([[0, 1], [1], [1], []])
    edges = [csr_of([[0], [1], [], [2]]), csr_of([[7], [1, 3], [5], [], [4]])]
    graphs = dict(zip(REGULARIZERS[:2], edges, strict=True))
    data = TrainingData(np.arange(4), clicks, graphs, {}, {})
    sampler = Sampler(data, 3, seed=0, nodes=nodes)
    sources = SamplingSources(graphs)
    drawn = [sampler.draw(step, sources, REGULARIZERS) for step in range(3 * NUM_EPOCHS)]
    queries = np.concatenate([batch.queries for batch in drawn])
    ads = np.concatenate([batch.ads[:, 0] for batch in drawn])
    assert {tuple(sorted(batch.queries.tolist())) for batch in drawn} == {(0, 1, 2)}
    assert set(zip(queries.tolist(), ads.tolist(), strict=True)) == {(0, 0), (0, 1), (1, 1), (2, 1)}
    for regularizer, shares, of_batch in zip(graphs, NODES[nodes], (queries, ads), strict=True):
        found, anchors = np.concatenate([batch.anchors[regularizer] for batch in drawn], axis=1)
        _assert_shares(found, shares)
        rows = rows_of(graphs[regularizer])
        pairs = {(node, anchor) for node in shares for anchor in rows[node] or [-1]}
        assert set(zip(found.tolist(), anchors.tolist(), strict=True)) == pairs
        if nodes == "clicked":
            assert found.tolist() == of_batch.tolist()
        else:
            together = stats.contingency.crosstab(of_batch, found).count
            assert stats.contingency.association(together) < 0.05
    _assert_shares(anchors[found == 1], {1: 1, 3: 1})


def _assert_shares(drawn, shares):
    ids, counts = np.unique(drawn, return_counts=True)
    assert ids.tolist() == sorted(shares)
    share = np.array([shares[i] for i in ids.tolist()])
    assert stats.chisquare(counts, share / share.sum() * len(drawn)).pvalue > 0.01


def _several(clicks, num_ads, num_epochs):
    """Draw for every row in many epochs; returns (epochs, rows, ads)."""
    rows = np.arange(clicks.num_rows)
    return np.stack([draw_ads(clicks, rows, rows + 7, (3, e), num_ads) for e in range(num_epochs)])


def test_several_ads_of_a_query_are_distinct_clicks_or_all_of_them():
    clicks = csr_of([[4, 9, 2, 7], [], [5], [1, 3], [0, 2, 4, 6, 8]])
    for drawn in _several(clicks, 3, num_epochs=20):
        for found, clicked in zip(drawn.tolist(), rows_of(clicks), strict=True):
            ads = [ad for ad in found if ad >= 0]
            assert len(set(ads)) == len(ads) == min(3, len(clicked))
            assert set(ads) <= set(clicked)
            assert found == ads + [-1] * (3 - len(ads))


@pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0, 5.0])], ids=["uniform", "weighted"])
def test_several_ads_follow_the_clicks_weights(weights):
    ads = np.array([4, 6, 9])
    clicks = Csr.from_pairs(np.zeros(3, dtype=int), ads, 1, weights)
    drawn = _several(clicks, 2, num_epochs=4000)[:, 0]
    parts = np.ones(3) if weights is None else weights
    share = dict(zip(ads.tolist(), (parts / parts.sum()).tolist(), strict=True))
    pairs = list(permutations(ads.tolist(), 2))
    expected = [share[first] * share[second] / (1 - share[first]) for first, second in pairs]
    found = [(drawn == pair).all(axis=1).sum() for pair in pairs]
    assert stats.chisquare(found, np.array(expected) * 4000).pvalue > 0.001
