"""Adaptive weights: the rule against loops, good and random graphs, workers, checkpoints."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from short_runs import Run, build_sampler
from support import csr_of, rows_of
from torch import nn
from torch.nn import functional

from ramen_ray.data.arrays import hash_texts
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.data.store.judgements import Judgements
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.objectives.adaptation import AdaptiveWeights, untestable
from ramen_ray.method.objectives.judged import JudgedPart
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.training_data import JudgedAds, Regularizer, TrainingData

LOSS = TripletLoss(0.3, 4)
WEIGHTS = {"links": 0.4, "topics": 0.2}
OBJECTIVE = ramen_objective(LOSS, WEIGHTS, WEIGHTS)
STEP_SIZE = 0.01
LEAST, FIRST = 0.01, 0.1
"""Shares of λ: the least weight, and that with which a graph begins to pull."""
CPU = torch.device("cpu")


def _adaptive(sampler, objective=OBJECTIVE, step_size=STEP_SIZE, earns_first=True):
    untested = () if earns_first else objective.regularizers
    return AdaptiveWeights(objective, step_size, sampler.steps_per_epoch, CPU, untested)


def _begin(encoder, sampler, adaptive):
    rates = (1e-2, 0.01, None)
    return Run(encoder, sampler, adaptive.objective, [adaptive], rates, (4, 60))


def _loop_lead(row, own, candidates, positive):
    rivals = [c for c, is_positive in zip(candidates, positive, strict=True) if not is_positive]
    if not rivals:
        return np.zeros_like(row)
    return own - max(rivals, key=lambda rival: float(row @ rival))


def _loop_gains(model, sampler, step, high):
    """Return each regulariser's gains in a step, of each row; no pair judged ``high`` rivals."""
    batch = sampler.draw(step, SamplingSources(sampler.data.graphs), list(sampler.data.graphs))

    def vectors(table, ids):
        texts = sampler.data.tables[table]
        return [model.embed_texts(texts, np.array([n]))[0] if n >= 0 else None for n in ids]

    ads_drawn = batch.ads[:, 0]
    size = len(batch.queries)
    queries, ads = vectors("queries", batch.queries), vectors("ads", ads_drawn)
    clicks = rows_of(sampler.data.clicks)
    clicked = [
        [ad in clicks[query] or (query, ad) in high for ad in ads_drawn.tolist()]
        for query in batch.queries.tolist()
    ]
    ahead = {
        "query": [_loop_lead(queries[i], ads[i], ads, clicked[i]) for i in range(size)],
        "ad": [
            _loop_lead(ads[i], queries[i], queries, [row[i] for row in clicked])
            for i in range(size)
        ],
    }
    gains = []
    for name, side in batch.anchors:
        pool = {
            anchor
            for of_set in {"query", "ad"}
            if (name, of_set) in batch.anchors
            for anchor in batch.anchors[name, of_set].anchors.tolist()
            if anchor >= 0
        }
        linked = rows_of(sampler.data.graphs[name, side])
        rows = {"query": batch.queries, "ad": ads_drawn}[side].tolist()
        shown = [sorted(pool & set(linked[row])) for row in rows]
        anchors = {a: vectors(f"anchors/{name}", np.array([a]))[0] for a in sorted(pool)}
        means = [np.mean([anchors[a] for a in some], axis=0) if some else None for some in shown]
        overall = np.mean([mean for mean in means if mean is not None], axis=0)
        of_rows = [0.0] * size
        for i, mean in enumerate(means):
            if mean is not None:
                row = {"query": queries, "ad": ads}[side][i]
                pull = mean - overall
                of_rows[i] = float(ahead[side][i] @ (pull - (pull @ row) * row))
        gains.append(of_rows)
    return gains


@pytest.mark.parametrize("is_judged", [False, True])
def test_weights_and_evidence_follow_a_loop_over_rows(is_judged, prepared_bag, encoder_path):
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    pulling = _adaptive(sampler, earns_first=False)
    run = _begin(build_bag(encoder_path), sampler, pulling)
    high = set()
    if is_judged:
        num_queries, num_ads = len(prepared_bag.query_ids), len(prepared_bag.ads)
        pairs = np.random.default_rng(0).permutation(num_queries * num_ads)[: 5 * num_queries]
        queries, ads = np.divmod(pairs, num_ads)
        high = {*zip(queries.tolist(), ads.tolist(), strict=True)}
        judgements = Judgements(queries, ads, np.full(len(pairs), 0.6))
        judged = JudgedAds.from_judgements(judgements, num_queries)
        run.state.parts = [JudgedPart(judged, CPU), pulling]
    num_regularizers = len(OBJECTIVE.regularizers)
    highest = np.array(OBJECTIVE.weights[1:])
    expected = FIRST * highest
    moves = []
    for step in range(2 * sampler.steps_per_epoch - 1):
        if step % sampler.steps_per_epoch == 0:
            seen = set()
            evidence = np.zeros((2, num_regularizers))
        gains = np.array(_loop_gains(run.model, sampler, step, high))
        ads = sampler.draw(step, run.state.sources, []).ads[:, 0].tolist()
        for place, ad in enumerate(ads):
            for number, regularizer in enumerate(OBJECTIVE.regularizers):
                if regularizer.side == "query" or ad not in seen:
                    evidence[0, number] += gains[number, place]
                    evidence[1, number] += gains[number, place] ** 2
            seen.add(ad)
        moves.append(gains.sum(axis=1))
        expected = np.clip(expected * np.exp(STEP_SIZE * moves[-1]), LEAST * highest, highest)
        (weights,) = run.weights(step + 1)
        assert weights == pytest.approx([1.0, *expected], rel=1e-4)
        if (step + 1) % sampler.steps_per_epoch:
            kept = pulling.save(Path())["evidence"][:, 1:]
            np.testing.assert_allclose(kept, evidence, rtol=1e-4, atol=1e-6)
    assert np.min(moves) < 0 < np.max(moves)
    assert len(seen) < len(ads) * sampler.steps_per_epoch, "some ads come more than once"


def _evidence(gains):
    """Return the gains of nodes (nodes, terms) as a step hands them on; first a task's."""
    sums = torch.stack([gains.sum(dim=0), gains.sum(dim=0), gains.square().sum(dim=0)])
    return torch.cat([torch.zeros(3, 1), sums], dim=1).double()


@pytest.mark.parametrize("num_nodes", [8, 100, 1000])
@pytest.mark.parametrize("is_heavy", [False, True])
def test_of_useless_graphs_at_most_one_in_fifty_ever_pulls(num_nodes, is_heavy):
    """Each epoch has the same nodes, whose gains hardly change, as those of a trained encoder."""
    generator = torch.Generator().manual_seed(num_nodes)
    objective = ramen_objective(LOSS, {}, {f"{number}": 0.5 for number in range(600)})
    adaptive = AdaptiveWeights(objective, STEP_SIZE, 1, CPU)
    adaptive.num_tests = 1  # each is tested as if it was alone
    gains = torch.randn(num_nodes, 600, generator=generator)
    if is_heavy:
        gains = gains**3
    for _ in range(60):
        change = torch.randn(num_nodes, 600, generator=generator)
        adaptive.move(_evidence(gains + 0.1 * change))
        adaptive.end_step()
    assert (adaptive.weights[1:] > 0).float().mean() <= 0.02


def test_a_weight_is_0_until_its_evidence_suffices_and_then_adapts(tmp_path):
    objective = ramen_objective(LOSS, {"links": 0.5}, {"links": 0.2})

    def begun():
        return AdaptiveWeights(objective, STEP_SIZE, 10, CPU)

    adaptive = begun()
    assert adaptive.weights.tolist() == [1.0, 0.0, 0.0]
    needed = math.sqrt(2 * math.log(2 * math.pi**2 / (6 * 0.02)))  # of two, at the first look
    just = torch.tensor([0.0, needed * 1.001, needed * 0.999])
    adaptive.move(torch.stack([just, just, torch.ones(3)]).double())
    adaptive.look()
    assert adaptive.weights.tolist() == pytest.approx([1.0, 0.05, 0.0]), "a tenth of λ"
    again = begun()
    again.restore(tmp_path, adaptive.save(tmp_path), SamplingSources({}))
    for one in (adaptive, again):
        gains = torch.tensor([0.0, 100 * math.log(3), 0.0])
        one.move(torch.stack([gains, 0 * gains, 0 * gains]).double())
        assert one.weights.tolist() == pytest.approx([1.0, 0.15, 0.0])
        one.move(torch.stack([-99 * gains, 0 * gains, 0 * gains]).double())
        assert one.weights.tolist() == pytest.approx([1.0, 0.005, 0.0]), "a hundredth of λ"
        one.look()
        assert one.weights.tolist() == pytest.approx([1.0, 0.005, 0.0])


def _shuffled(edges, draw):
    rows = np.repeat(np.arange(edges.num_rows), np.diff(edges.indptr))
    pairs = np.unique(np.stack([rows, draw.permutation(edges.indices)]), axis=1)
    return Csr.from_pairs(*pairs, edges.num_rows)


def _planted():
    """12 groups of queries and ads: 8 each, of one token near their anchor's; clicks stay inside.

    Returns the data, and embeddings of the tokens: of the queries, of the ads, of the anchors.
    """
    group = torch.arange(96) // 8
    generator = torch.Generator().manual_seed(0)
    anchors = functional.normalize(torch.randn(12, 16, generator=generator), dim=1)
    nodes = anchors[group].repeat(2, 1) + 0.4 * torch.randn(192, 16, generator=generator)

    def texts(first, last):
        ids = np.arange(first, last)
        offsets = np.arange(last - first + 1)
        return TokenTable(ids, offsets, hash_texts(ids, offsets))

    clicks = csr_of([[query // 8 * 8 + (query + i) % 8 for i in (0, 3, 5)] for query in range(96)])
    edges = csr_of([[own] for own in group.tolist()])
    graphs = {Regularizer("links", side): edges for side in ("query", "ad")}
    tables = {"queries": texts(0, 96), "ads": texts(96, 192), "anchors/links": texts(192, 204)}
    known = {one: [edges] for one in graphs}
    return TrainingData(np.arange(96), clicks, graphs, known, tables), torch.cat([nodes, anchors])


def test_a_random_graph_never_pulls_and_a_good_one_earns_its_weight(encoder_path):
    objective = ramen_objective(LOSS, {"links": 0.1}, {"links": 0.1})

    def weights(draw=None):
        data, embeddings = _planted()
        if draw is not None:
            graphs = {one: _shuffled(edges, draw) for one, edges in data.graphs.items()}
            known = {one: [edges] for one, edges in graphs.items()}
            data = replace(data, graphs=graphs, known_edges=known)
        encoder = build_bag(encoder_path)
        encoder.embedding = nn.EmbeddingBag.from_pretrained(embeddings, freeze=False, mode="mean")
        sampler = Sampler(data, 16, seed=3)
        begun = _begin(encoder, sampler, _adaptive(sampler, objective, 0.05))
        return np.array(begun.weights(60))[:, 1:]

    random = [weights(np.random.default_rng(seed)) for seed in range(3)]
    good = weights()
    assert np.max(random) == 0
    assert np.min(good[-1]) > 0.1 * 0.99


@pytest.mark.parametrize(("num_clicked", "is_told"), [(0, True), (8, True), (24, False)])
@pytest.mark.parametrize("side", ["query", "ad"])
def test_a_graph_of_nodes_without_clicks_pulls_untested_at_a_tenth(num_clicked, is_told, side):
    """However much its clicked nodes gained: each as much as any other is the most that shows."""
    data, _ = _planted()
    rows = np.repeat(np.arange(96), 3)
    ads = data.clicks.indices
    is_clicked = {"query": rows, "ad": ads}[side] < num_clicked
    clicks = Csr.from_pairs(rows[is_clicked], ads[is_clicked], 96)
    regularizer = Regularizer("links", side)
    edges = data.graphs[regularizer]
    data = replace(data, clicks=clicks, graphs={regularizer: edges})
    assert untestable(data) == [regularizer] * is_told
    assert untestable(replace(data, graphs={})) == []
    weights = {"query": ({"links": 0.5}, {}), "ad": ({}, {"links": 0.5})}[side]
    objective = ramen_objective(LOSS, *weights)
    adaptive = AdaptiveWeights(objective, STEP_SIZE, 1, CPU, untestable(data))
    assert adaptive.weights[1:].tolist() == pytest.approx([0.05 * is_told])
    tested = AdaptiveWeights(objective, STEP_SIZE, 1, CPU)
    tested.move(_evidence(torch.ones(num_clicked, 1)))
    tested.end_step()
    assert (tested.weights[1] > 0) == (not is_told)


def test_a_graph_that_lost_all_its_edges_moves_nothing(prepared_bag, encoder_path):
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    run = _begin(build_bag(encoder_path), sampler, _adaptive(sampler, earns_first=False))
    bare = {one: csr_of([[]] * edges.num_rows) for one, edges in sampler.data.graphs.items()}
    run.state.sources = SamplingSources(bare)
    before = run.state.parts[0].weights.tolist()
    assert run.weights(3) == [before] * 3
