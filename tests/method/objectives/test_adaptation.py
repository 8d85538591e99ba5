"""Adaptive weights: the rule against loops, good and random graphs, workers, checkpoints."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from short_runs import Run, build_sampler
from support import csr_of, rows_of
from torch import Tensor, nn
from torch.nn import functional

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.hashing import hash_texts
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import Encoder, build_bag
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Objective, ramen_objective
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.training_data import Regularizer, TrainingData

LOSS = TripletLoss(0.3, 4)
WEIGHTS = {"links": 0.4, "topics": 0.2}
OBJECTIVE = ramen_objective(LOSS, WEIGHTS, WEIGHTS)
STEP_SIZE = 0.01
HIGHEST = 0.3
LEAST, PULLING = 0.01, 0.1
"""Shares of the highest weight: what has been earned at first, and what pulls."""
EARNED = 0.3


def _begin(
    encoder: Encoder,
    sampler: Sampler,
    objective: Objective = OBJECTIVE,
    step_size: float = STEP_SIZE,
    start: float = EARNED,
) -> Run:
    """Begin with what has earned a share ``start`` of the highest weight."""
    adaptive = AdaptiveWeights(objective, HIGHEST, step_size, torch.device("cpu"))
    earned = {one.name: start * HIGHEST if one.regularizer else 1.0 for one in objective.terms}
    adaptive.restore(Path(), earned, SamplingSources({}))
    return Run(encoder, sampler, objective, [adaptive], (1e-2, 0.01, None), (4, 60))


def _loop_lead(
    row: np.ndarray, own: np.ndarray, candidates: np.ndarray, positive: list[bool]
) -> np.ndarray:
    rivals = [c for c, is_positive in zip(candidates, positive, strict=True) if not is_positive]
    if not rivals:
        return np.zeros_like(row)
    return own - max(rivals, key=lambda rival: float(row @ rival))


def _loop_gains(model: DualEncoder, sampler: Sampler, step: int) -> list[float]:
    """Return each regulariser's gains in a step, row by row."""
    batch = sampler.draw(step, SamplingSources(sampler.data.graphs), list(sampler.data.graphs))

    def vectors(table: str, ids: np.ndarray) -> list[np.ndarray | None]:
        texts = sampler.data.tables[table]
        return [model.embed_texts(texts, np.array([n]))[0] if n >= 0 else None for n in ids]

    ads_drawn, size = batch.ads[:, 0], len(batch.queries)
    queries, ads = vectors("queries", batch.queries), vectors("ads", ads_drawn)
    clicks = rows_of(sampler.data.clicks)
    clicked = [[ad in clicks[query] for ad in ads_drawn] for query in batch.queries]
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
        total = 0.0
        for i, mean in enumerate(means):
            if mean is not None:
                row, pull = {"query": queries, "ad": ads}[side][i], mean - overall
                total += float(ahead[side][i] @ (pull - (pull @ row) * row))
        gains.append(total)
    return gains


def test_the_weights_follow_a_loop_over_rows(prepared_bag, encoder_path):
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    run = _begin(build_bag(str(encoder_path)), sampler)
    earned, moves = np.full(len(OBJECTIVE.terms) - 1, EARNED * HIGHEST), []
    for step in range(8):
        gains = np.array(_loop_gains(run.model, sampler, step))
        earned = np.clip(earned * np.exp(STEP_SIZE * gains), LEAST * HIGHEST, HIGHEST)
        expected = np.where(earned < PULLING * HIGHEST, 0, earned)
        (found,) = run.weights(step + 1)
        assert found == pytest.approx([1.0, *expected], rel=1e-4)
        moves.append(gains)
    assert np.min(moves) < 0 < np.max(moves)


def test_a_weight_is_0_until_it_is_earned_and_comes_back(tmp_path):
    objective = ramen_objective(LOSS, {"links": 0.5}, {"links": 0.2})
    adaptive = AdaptiveWeights(objective, 0.4, STEP_SIZE, torch.device("cpu"))
    assert adaptive.weights.tolist() == [1.0, 0.0, 0.0], "whatever λ is"
    adaptive.move(torch.tensor([0.0, -1e4, 1e4]))
    assert adaptive.weights.tolist() == pytest.approx([1.0, 0.0, 0.4])
    adaptive.move(torch.tensor([5.0, 99 * math.log(10), 0.0]))
    assert adaptive.weights.tolist() == pytest.approx([1.0, 0.0, 0.4])
    kept = adaptive.save(tmp_path)
    again = AdaptiveWeights(objective, 0.4, STEP_SIZE, torch.device("cpu"))
    again.restore(tmp_path, kept, SamplingSources({}))
    for one in (adaptive, again):
        one.move(torch.tensor([0.0, 2 * math.log(10), -50 * math.log(10)]))
        rising = 0.004 * 10**1.01
        assert one.weights.tolist() == pytest.approx([1.0, rising, 0.4 / 10**0.5])
        one.move(torch.tensor([0.0, -2 * math.log(10), -51 * math.log(10)]))
        assert one.weights.tolist() == [1.0, 0.0, 0.0], "what was lost is earned again"


def _shuffled(edges: Csr, draw: np.random.Generator) -> Csr:
    rows = np.repeat(np.arange(edges.num_rows), np.diff(edges.indptr))
    pairs = np.unique(np.stack([rows, draw.permutation(edges.indices)]), axis=1)
    return Csr.from_pairs(*pairs, edges.num_rows)


def _planted() -> tuple[TrainingData, Tensor]:
    """12 groups of queries and ads: 8 each, of one token near their anchor's; clicks stay inside.

    Returns the data, and embeddings of the tokens: of the queries, of the ads, of the anchors.
    """
    group = torch.arange(96) // 8
    generator = torch.Generator().manual_seed(0)
    anchors = functional.normalize(torch.randn(12, 16, generator=generator), dim=1)
    nodes = anchors[group].repeat(2, 1) + 0.4 * torch.randn(192, 16, generator=generator)

    def texts(first: int, last: int) -> TokenTable:
        ids, offsets = np.arange(first, last), np.arange(last - first + 1)
        return TokenTable(ids, offsets, hash_texts(ids, offsets))

    clicks = csr_of([[query // 8 * 8 + (query + i) % 8 for i in (0, 3, 5)] for query in range(96)])
    edges = csr_of([[own] for own in group.tolist()])
    graphs = {Regularizer("links", side): edges for side in ("query", "ad")}
    tables = {"queries": texts(0, 96), "ads": texts(96, 192), "anchors/links": texts(192, 204)}
    known = {one: [edges] for one in graphs}
    return TrainingData(np.arange(96), clicks, graphs, known, tables), torch.cat([nodes, anchors])


def test_a_random_graph_never_pulls_and_a_good_one_earns_its_weight(encoder_path):
    objective = ramen_objective(LOSS, {"links": 0.1}, {"links": 0.1})

    def weights(draw: np.random.Generator | None = None) -> np.ndarray:
        data, embeddings = _planted()
        if draw is not None:
            graphs = {one: _shuffled(edges, draw) for one, edges in data.graphs.items()}
            known = {one: [edges] for one, edges in graphs.items()}
            data = replace(data, graphs=graphs, known_edges=known)
        encoder = build_bag(str(encoder_path))
        encoder.embedding = nn.EmbeddingBag.from_pretrained(embeddings, freeze=False, mode="mean")
        begun = _begin(encoder, Sampler(data, 16, seed=3), objective, 0.05, LEAST)
        return np.array(begun.weights(60))[:, 1:]

    random = [weights(np.random.default_rng(seed)) for seed in range(3)]
    good = weights()
    assert np.max(random) == np.max(good[0]) == 0
    assert np.min(good[-1]) > HIGHEST * 0.99


def test_what_need_not_earn_first_pulls_from_the_first_step_and_never_stops():
    pulling = AdaptiveWeights(OBJECTIVE, HIGHEST, STEP_SIZE, torch.device("cpu"), earns_first=False)
    starts = [0.1 * HIGHEST if term.regularizer else term.weight for term in OBJECTIVE.terms]
    assert pulling.weights.tolist() == pytest.approx(starts)
    pulling.move(torch.tensor([-1e4] * len(OBJECTIVE.terms)))
    least = [0.01 * HIGHEST if term.regularizer else term.weight for term in OBJECTIVE.terms]
    assert pulling.weights.tolist() == pytest.approx(least)


def test_a_graph_that_lost_all_its_edges_moves_nothing(prepared_bag, encoder_path):
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    run = _begin(build_bag(str(encoder_path)), sampler)
    bare = {one: csr_of([[]] * edges.num_rows) for one, edges in sampler.data.graphs.items()}
    run.state.sources = SamplingSources(bare)
    before = run.state.parts[0].weights.tolist()
    assert run.weights(3) == [before] * 3


def test_weights_move_in_steps_with_anchors_as_far_as_in_all(prepared_bag, encoder_path):
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    first = _begin(build_bag(str(encoder_path)), sampler).weights(1)[0]
    seldom = ramen_objective(LOSS, WEIGHTS, WEIGHTS, every_steps=3)
    moved = np.array(_begin(build_bag(str(encoder_path)), sampler, seldom).weights(4))
    assert (moved[0] == moved[1:3]).all()
    assert (moved[3] != moved[2])[1:].any()
    start = np.array([1.0, *[EARNED * HIGHEST] * (len(first) - 1)])
    assert moved[0] == pytest.approx(start * (np.array(first) / start) ** 3, rel=1e-5)
