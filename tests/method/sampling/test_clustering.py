"""Balanced clusters of queries, and the batches that they fill."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from ramen_ray.method.sampling import curriculum
from ramen_ray.method.sampling.batches import clustered_order
from ramen_ray.method.sampling.curriculum import (
    Clusters,
    balanced_clusters,
    cut_in_two,
)


def _random_embeddings(num_rows, dim=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(num_rows, dim, generator=generator), dim=1)


def _planted(num_groups, group_size):
    """Rows around planted centres, in random order, and the group of each."""
    groups = np.random.default_rng(1).permutation(np.repeat(np.arange(num_groups), group_size))
    noise = 0.05 * torch.randn(len(groups), 32, generator=torch.Generator().manual_seed(2))
    return normalize(_random_embeddings(num_groups, 32)[groups] + noise, dim=1), groups


def _members(clusters):
    bounds = np.arange(clusters.num_clusters + 1) * len(clusters.rows) // clusters.num_clusters
    return [clusters.rows[a:b].tolist() for a, b in pairwise(bounds.tolist())]


def _mean_cosine_within(embeddings, clusters):
    means = [(embeddings[rows] @ embeddings[rows].T).mean().item() for rows in _members(clusters)]
    return float(np.mean(means))


@given(st.integers(1, 120), st.data())
def test_clusters_are_a_balanced_partition(num_rows, data):
    num_clusters = data.draw(st.integers(1, num_rows))
    clusters = balanced_clusters(_random_embeddings(num_rows), num_clusters, seed=0)
    sizes = [len(rows) for rows in _members(clusters)]
    assert sorted(clusters.rows.tolist()) == list(range(num_rows))
    assert len(sizes) == num_clusters
    assert max(sizes) - min(sizes) <= 1


def test_clusters_repeat_with_the_seed_and_are_found_on_samples_and_in_pieces(monkeypatch):
    embeddings = _random_embeddings(300)
    first = balanced_clusters(embeddings, 50, seed=4)
    assert balanced_clusters(embeddings, 50, seed=4).rows.tolist() == first.rows.tolist()
    assert balanced_clusters(embeddings, 50, seed=5).rows.tolist() != first.rows.tolist()
    monkeypatch.setattr(curriculum, "MAX_SAMPLE", 32)
    sampled = balanced_clusters(_planted(8, 32)[0], 8, seed=4)
    monkeypatch.setattr(curriculum, "ROWS_AT_ONCE", 50)
    in_pieces = balanced_clusters(_planted(8, 32)[0], 8, seed=4)
    for clusters in (sampled, in_pieces):
        assert _mean_cosine_within(_planted(8, 32)[0], clusters) > 0.6


def _halve_naively(embeddings, rows):
    """Two-means on one cluster, written out, from the same first centres: its first two rows."""
    vectors = {row: embeddings[row].double() for row in rows}
    half = (len(rows) + 1) // 2
    one, other = vectors[rows[0]], vectors[rows[-1]]
    for _ in range(curriculum.MAX_ITERATIONS):
        by_preference = sorted(rows, key=lambda row: -float(vectors[row] @ (one - other)))
        left, right = by_preference[:half], by_preference[half:]
        one, other = (normalize(sum(vectors[r] for r in side), dim=0) for side in (left, right))
    by_preference = sorted(rows, key=lambda row: -float(vectors[row] @ (one - other)))
    return {frozenset(by_preference[:half]), frozenset(by_preference[half:])}


def test_a_level_equals_two_means_on_each_cluster_alone(monkeypatch):
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    monkeypatch.setattr(curriculum, "LEAST_GAIN", -1.0)
    embeddings = _random_embeddings(96)
    rows = torch.randperm(96)
    rows = rows.flip(0)
    halved = cut_in_two(embeddings, rows, torch.arange(17), torch.Generator())
    for start in range(0, 96, 12):
        found = halved[start : start + 12].tolist()
        sides = {frozenset(found[:6]), frozenset(found[6:])}
        assert sides == _halve_naively(embeddings, rows[start : start + 12].tolist())


def test_clusters_stay_together_and_their_order_changes_with_the_epoch():
    clusters = Clusters(np.random.default_rng(0).permutation(64), 16)
    orders = [clustered_order(clusters, 8, range(8), 0, epoch) for epoch in range(20)]
    together = {frozenset(rows) for rows in _members(clusters)}
    for order in orders:
        assert {frozenset(four) for four in order.reshape(-1, 4).tolist()} == together
    assert len({order.tobytes() for order in orders}) == len(orders)
