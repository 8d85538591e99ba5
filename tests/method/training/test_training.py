"""The training step against loops, and a resumed run against a whole one."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from short_runs import Run, build_encoder, build_sampler
from support import csr_of, rows_of
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag, build_transformer
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.objectives.losses import SoftmaxLoss, TripletLoss
from ramen_ray.method.objectives.terms import (
    ramen_objective,
    similarity_to_other_texts,
    task_term,
)
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.curriculum import ClusterSchedule, Curriculum
from ramen_ray.method.sampling.encoded import StepPart, encode
from ramen_ray.method.sampling.training_data import TrainingData, open_graphs
from ramen_ray.method.training.state import (
    build_optimizer,
    build_schedule,
)
from ramen_ray.method.training.step import StepMemoryError, step_inputs

LAMBDA_X = {"links": 0.5, "topics": 0.2}
LAMBDA_Z = {"links": 0.3, "topics": 0.1}
MARGIN = 0.3
HARDEST_FOUR = TripletLoss(MARGIN, 4)
ALL_SOFT = TripletLoss(MARGIN, 30, softmax_weighting=True)
OBJECTIVE = ramen_objective(HARDEST_FOUR, LAMBDA_X, LAMBDA_Z)
SIDES = ("query", "ad")
KINDS = ["transformer", "bag"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def _inputs(sampler, step, objective=OBJECTIVE, sources=None):
    """Return what a step computes on."""
    sources = sources or SamplingSources(sampler.data.graphs)
    steps = range(step, step + 1)
    (inputs,) = step_inputs(sampler, sources, objective, steps, torch.device("cpu"))
    return inputs


def _step(model, sampler, step, objective=OBJECTIVE, sources=None):
    """Return a step's losses (terms,)."""
    encoded = encode(model, _inputs(sampler, step, objective, sources))
    return objective.losses(encoded, step)


@pytest.fixture
def data(request, kind):
    """The dataset prepared for the test's kind of encoder."""
    return request.getfixturevalue("prepared_bag" if kind == "bag" else "prepared")


class Recorder(nn.Module):
    """Takes the place of an encoder and remembers the texts that it was given."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Embedding(100, 4)
        self.texts = []

    def forward(self, texts):
        ends = np.cumsum(texts.lengths)
        split = np.split(texts.token_ids, ends[:-1])
        self.texts += [tuple(ids.tolist()) for ids in split]
        means = [self.weights(torch.from_numpy(ids)).mean(dim=0) for ids in split]
        return functional.normalize(torch.stack(means), dim=-1)


def _drawn_texts(sampler, step, sources=None):
    """Return the tokens of all that a step draws, by table and id."""
    sources = sources or SamplingSources(sampler.data.graphs)
    batch = sampler.draw(step, sources, list(sources.graphs))
    return {
        (table, row): tuple(sampler.data.tables[table].gather(np.array([row])).tolist())
        for table, ids in batch.drawn()
        for row in ids.ravel().tolist()
        if row >= 0
    }


def test_each_distinct_text_of_a_step_is_encoded_once_shortest_first(prepared):
    sampler = build_sampler(prepared, OBJECTIVE)
    recorder = Recorder()
    for step in range(sampler.steps_per_epoch):
        recorder.texts.clear()
        _step(recorder, sampler, step)
        drawn = list(_drawn_texts(sampler, step).values())
        assert sorted(recorder.texts) == sorted(set(drawn))
        batch = sampler.draw(step, SamplingSources(sampler.data.graphs), OBJECTIVE.regularizers)
        assert len(recorder.texts) < sum((ids >= 0).sum() for _, ids in batch.drawn())
        lengths = [len(text) for text in recorder.texts]
        assert lengths == sorted(lengths)


def test_of_several_steps_the_first_counts_for_the_anchors_of_all(prepared_bag, encoder_path):
    encoder = build_bag(encoder_path)
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    every = 3
    seldom = ramen_objective(HARDEST_FOUR, LAMBDA_X, LAMBDA_Z, every)
    without = ramen_objective(HARDEST_FOUR, {}, {})
    for step in range(2 * every):
        plain = _step(encoder, sampler, step)
        found = _step(encoder, sampler, step, seldom)
        assert_close(found[0], plain[0])
        assert_close(found[1:], plain[1:] * (step % every == 0))
        seen = Recorder()
        expected = Recorder()
        _step(seen, sampler, step, seldom)
        _step(expected, sampler, step, without if step % every else OBJECTIVE)
        assert seen.texts == expected.texts
    tripled = [
        {name: every * weight for name, weight in one.items()} for one in (LAMBDA_X, LAMBDA_Z)
    ]
    runs = [
        Run(build_bag(encoder_path), sampler, objective, schedule=(0, 40))
        for objective in (seldom, ramen_objective(HARDEST_FOUR, *tripled), OBJECTIVE)
    ]
    losses = [run.train(1) for run in runs]
    assert losses[0] == losses[1] == losses[2], "of the first step, before any update"
    assert_close(runs[0].parameters, runs[1].parameters)
    assert not torch.allclose(runs[0].parameters, runs[2].parameters)


def _naive_terms(encoder, sampler, step, loss=HARDEST_FOUR, sources=None):
    """Return the terms by name, from single texts and plain loops."""
    sources = sources or SamplingSources(sampler.data.graphs)
    batch = sampler.draw(step, sources, list(sources.graphs))
    vectors = {
        key: encoder(TokenBatch(np.array(ids), np.array([len(ids)])))[0]
        for key, ids in _drawn_texts(sampler, step, sources).items()
    }

    def term(rows, drawn, pool, known):
        total = torch.zeros(())
        for row, own_key in zip(rows, drawn, strict=True):
            if own_key[1] < 0:
                continue
            own = vectors[row] @ vectors[own_key]
            similar = [vectors[row] @ vectors[key] for key in pool if key[1] not in known[row[1]]]
            similar = sorted(similar, key=Tensor.item, reverse=True)[: loss.num_negatives]
            violators = [s for s in similar if s - own + MARGIN > 0]
            norm = sum(torch.exp(s / 0.1) for s in violators)
            for s in violators:
                weight = torch.exp(s / 0.1) / norm if loss.softmax_weighting else 1.0
                total = total + weight * (s - own + MARGIN) / len(similar) / len(rows)
        return total

    def keys(table, ids):
        return [(table, row) for row in ids.ravel().tolist()]

    def candidates(*parts):
        return {key for part in parts for key in part if key[1] >= 0}

    queries = keys("queries", batch.queries)
    ads = keys("ads", batch.ads)
    pool = candidates(ads, keys("ads", batch.hard_negatives))
    terms = {"task": term(queries, ads, pool, rows_of(sampler.data.clicks))}
    for (name, side), (nodes, anchors) in batch.anchors.items():
        table = f"anchors/{name}"
        of_set = [
            keys(table, batch.anchors[name, s].anchors) for s in SIDES if (name, s) in batch.anchors
        ]
        linked = zip(*map(rows_of, sampler.data.known_edges[name, side]), strict=True)
        known = [[anchor for row in rows for anchor in row] for rows in linked]
        own_nodes = keys({"query": "queries", "ad": "ads"}[side], nodes)
        terms[f"R_{'xz'[SIDES.index(side)]}/{name}"] = term(
            own_nodes, keys(table, anchors), candidates(*of_set), known
        )
    return terms


def _gradients(encoder, loss):
    encoder.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in encoder.parameters()]


@pytest.mark.parametrize(
    ("loss", "lambda_x", "lambda_z"),
    [
        (HARDEST_FOUR, LAMBDA_X, LAMBDA_Z),
        (ALL_SOFT, LAMBDA_X, LAMBDA_Z),
        (HARDEST_FOUR, {"links": 0.5, "topics": 0.0}, {"topics": 0.1}),
    ],
    ids=["hinge", "softmax", "one-sided"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_terms_and_gradients_equal_a_loop_that_encodes_every_text_alone(
    kind, data, encoder_path, loss, lambda_x, lambda_z
):
    objective = ramen_objective(loss, lambda_x, lambda_z)
    encoder = build_encoder(kind, encoder_path)
    sampler = build_sampler(data, objective)
    weights = torch.tensor(objective.weights)
    for step in (0, sampler.steps_per_epoch + 1):
        found = _step(encoder, sampler, step, objective)
        by_name = _naive_terms(encoder, sampler, step, loss)
        expected = torch.stack(list(by_name.values()))
        assert list(by_name) == objective.names
        assert (expected > 0).all()
        assert_close(found, expected, **TOLERANCE)
        assert_close(
            _gradients(encoder, (found * weights).sum()),
            _gradients(encoder, (expected * weights).sum()),
            **TOLERANCE,
        )


def test_edges_that_another_graph_leaves_out_are_no_negatives(prepared_bag, encoder_path, tmp_path):
    whole = build_sampler(prepared_bag, OBJECTIVE)
    draw = np.random.default_rng(0)
    for one, edges in whole.data.graphs.items():
        rows = rows_of(edges)
        num_anchors = len(prepared_bag.anchors(one.anchor_set))
        kept = [sorted({*row[::2], int(draw.integers(num_anchors))}) for row in rows]
        csr_of(kept).save(tmp_path / one.path)
    regularizers = OBJECTIVE.regularizers
    other = Sampler(TrainingData.from_prepared(prepared_bag, regularizers, tmp_path), 16, seed=3)
    encoder = build_encoder("bag", encoder_path)
    found = _step(encoder, other, 0)
    expected = torch.stack(list(_naive_terms(encoder, other, 0).values()))
    assert_close(found, expected, **TOLERANCE)
    drawn_only = {one: [edges] for one, edges in other.data.graphs.items()}
    blind = Sampler(replace(other.data, known_edges=drawn_only), 16, seed=3)
    assert not torch.allclose(found, torch.stack(list(_naive_terms(encoder, blind, 0).values())))
    pruned = SamplingSources(open_graphs(tmp_path, regularizers))
    assert_close(_step(encoder, other, 0, sources=pruned), found)


def _with_shortlists(sampler, num_ads):
    """Random shortlists without positives; some are empty."""
    draw = np.random.default_rng(0)
    ads = [
        np.setdiff1d(draw.permutation(num_ads)[: row % 9], clicked)
        for row, clicked in enumerate(rows_of(sampler.data.clicks))
    ]
    shortlists = np.array([[*row, *[-1] * (9 - len(row))] for row in ads], dtype=np.int32)
    return SamplingSources(sampler.data.graphs, shortlists=shortlists)


def test_hard_negatives_join_the_pool_of_all_queries(prepared_bag, encoder_path):
    encoder = build_bag(encoder_path)
    sampler = build_sampler(prepared_bag, OBJECTIVE, num_hard_negatives=2)
    sources = _with_shortlists(sampler, len(prepared_bag.ads))
    batch = sampler.draw(0, sources, OBJECTIVE.regularizers)
    assert (batch.hard_negatives >= 0).any()
    assert (batch.hard_negatives == -1).any()
    found = _step(encoder, sampler, 0, sources=sources)
    naive = _naive_terms(encoder, sampler, 0, sources=sources)
    expected = torch.stack(list(naive.values()))
    assert_close(found, expected, **TOLERANCE)
    assert_close(_gradients(encoder, found.sum()), _gradients(encoder, expected.sum()), **TOLERANCE)
    plain = _step(encoder, build_sampler(prepared_bag, OBJECTIVE), 0)
    assert found[0] > plain[0]
    assert_close(found[1:], plain[1:], **TOLERANCE)
    assert torch.equal(_step(encoder, sampler, 0), plain), "as long as there are no shortlists"


def test_a_curriculum_makes_clusters_of_the_queries_that_it_observes(prepared_bag, encoder_path):
    model = DualEncoder(build_bag(encoder_path))
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    schedule = ClusterSchedule(1, 1, 4, (2,), 3)
    curriculum = Curriculum(schedule, sampler, model.dim, torch.device("cpu"))
    sources = curriculum.prepare_next_steps(0, SamplingSources(sampler.data.graphs))
    assert sources.clusters is None
    assert curriculum.save(Path())["seen"] is None, "a checkpoint has no zeros"
    rows = []
    for step in range(sampler.steps_per_epoch):
        encoded = encode(model, _inputs(sampler, step))
        curriculum.after(encoded)
        rows += encoded.batch.queries.tolist()
    expected = model.embed_queries(prepared_bag.queries["train"], np.array(rows))
    seen = curriculum.seen
    assert_close(seen[rows].float(), torch.from_numpy(expected), rtol=0, atol=1e-3)
    left_out = np.setdiff1d(np.arange(len(prepared_bag.query_ids)), rows)
    assert len(left_out)
    assert not seen[left_out].any()
    clusters = curriculum.prepare_next_steps(sampler.steps_per_epoch, sources).clusters
    assert clusters.num_clusters == 16, "60 queries in clusters of at most 4"
    of_batch = Curriculum(ClusterSchedule(1, 1, 16, (), 3), sampler, model.dim, seen.device)
    of_batch.seen = seen
    assert of_batch.prepare_next_steps(sampler.steps_per_epoch, sources).clusters.num_clusters == 3


class _FullAt(StepPart):
    """Takes the memory that is left, in a step."""

    name = "full"

    def __init__(self, step):
        self.left = step

    def before(self, encoded):
        self.left -= 1
        if not self.left:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return encoded


def test_a_step_that_does_not_fit_is_told_with_its_size(prepared_bag, encoder_path):
    sampler = build_sampler(prepared_bag, OBJECTIVE)
    run = Run(build_bag(encoder_path), sampler, OBJECTIVE, [_FullAt(3)])
    texts = {*_drawn_texts(sampler, 2).values()}
    said = f"step 3: .* {len(texts)} texts of {sum(map(len, texts))} tokens"
    with pytest.raises(StepMemoryError, match=said) as told:
        run.train(5)
    assert run.state.step == told.value.step - 1 == 2
    assert told.value.num_texts == len(texts)
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_step_in_parts_has_the_losses_and_gradients_of_the_whole(
    is_compiled, prepared, encoder_path
):
    sampler = build_sampler(prepared, OBJECTIVE)
    model = DualEncoder(build_transformer(encoder_path))
    if is_compiled:
        model.encoder.backbone.compile(dynamic=True)
    inputs = _inputs(sampler, 0)
    num_texts = len(inputs.tokens.lengths)

    def train(texts_at_once, use_bf16):
        model.texts_at_once = texts_at_once
        model.zero_grad()
        objective = replace(OBJECTIVE, is_frugal=texts_at_once is not None)
        losses = objective.losses(encode(model, inputs, use_bf16), 0)
        losses.sum().backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return losses.detach(), torch.cat(gradients)

    losses, gradients = train(None, use_bf16=False)
    rounded = train(None, use_bf16=True)
    rounding = (rounded[1] - gradients).norm()
    for texts_at_once in (num_texts // 3, 7, num_texts + 1):
        in_parts = train(texts_at_once, use_bf16=False)
        assert_close(in_parts[0], losses, rtol=1e-6, atol=1e-7)
        assert (in_parts[1] - gradients).norm() <= 1e-6 * gradients.norm()
        in_parts = train(texts_at_once, use_bf16=True)
        assert_close(in_parts[0], rounded[0], rtol=4e-3, atol=1e-4)
        assert (in_parts[1] - gradients).norm() <= 1.5 * rounding


def test_a_frugal_objective_keeps_no_array_of_all_nodes_and_anchors(prepared, encoder_path):
    inputs = _inputs(build_sampler(prepared, OBJECTIVE), 0)
    encoded = encode(DualEncoder(build_transformer(encoder_path)), inputs)

    def kept(is_frugal):
        shapes = set[torch.Size]()

        def keep(tensor):
            shapes.add(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            replace(OBJECTIVE, is_frugal=is_frugal).losses(encoded, 0)
        return shapes

    compared = inputs.regularizers.values()
    of_all = {torch.Size((len(nodes.rows), len(nodes.candidates))) for nodes in compared}
    assert of_all & kept(is_frugal=False)
    assert not of_all & kept(is_frugal=True)


def _left_out(encoded, sampler):
    """Say which ads of the pool have a query's own text, and were not clicked for it."""
    tables = sampler.data.tables
    clicks = rows_of(sampler.data.clicks)
    return [
        [
            tables["ads"].hashes[ad] == tables["queries"].hashes[query] and ad not in clicks[query]
            for ad in encoded.ad_pool.ids
        ]
        for query in encoded.inputs.local.queries
    ]


@pytest.mark.parametrize(
    "loss", [HARDEST_FOUR, ALL_SOFT, SoftmaxLoss(0.05), SoftmaxLoss(0.05, False)]
)
def test_ads_of_a_querys_own_text_may_be_left_out(loss, prepared_bag, encoder_path):
    whole = TrainingData.from_prepared(prepared_bag, [])
    ads = whole.tables["ads"]
    moved = replace(whole, tables={**whole.tables, "queries": _with_texts_of(ads, whole)})
    sampler = Sampler(moved, 16, seed=3)
    encoded = encode(build_bag(encoder_path), _inputs(sampler, 0))
    left_out = np.array(_left_out(encoded, sampler))
    assert left_out.any(axis=1).sum() > 2
    similarity = encoded.own_similarity
    clicked = encoded.own_clicked_in_pool.numpy()
    expected = []
    for row, own in enumerate(encoded.own_places):
        kept = np.flatnonzero(~left_out[row])
        places = torch.tensor([[kept.tolist().index(int(own[0]))]])
        expected.append(
            loss(similarity[row, kept][None], places, torch.from_numpy(clicked[row, kept])[None])
        )
    found = task_term(loss, similarity_of=similarity_to_other_texts).loss(encoded)
    assert_close(found, torch.cat(expected).mean())
    assert not torch.isclose(found, task_term(loss).loss(encoded))


def _with_texts_of(ads, whole):
    """Give each query the text of an ad, which was clicked for some of them."""
    rows = np.arange(len(whole.query_ids)) % len(ads)
    lengths = ads.lengths(rows)
    return TokenTable(ads.gather(rows), np.append(0, lengths.cumsum()), ads.hashes[rows])


def test_gradients_are_clipped_to_the_norm(prepared_bag, encoder_path):
    run = Run(build_bag(encoder_path), build_sampler(prepared_bag, OBJECTIVE), OBJECTIVE)
    before = run.parameters
    run.state.optimizer = torch.optim.SGD(run.model.parameters(), lr=1.0)
    run.state.schedule = build_schedule(run.state.optimizer, 0, 1000)
    run.train(1, max_gradient_norm=0.01)
    assert (run.parameters - before).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_decayed_and_token_embeddings_have_a_rate_of_their_own(kind, encoder_path):
    encoder = build_encoder(kind, encoder_path)
    optimizer = build_optimizer(encoder, lr=0.1, weight_decay=0.5, embedding_lr=0.3)
    before = {name: value.detach().clone() for name, value in encoder.named_parameters()}
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in encoder.named_parameters():
        rate = 0.3 if value is encoder.token_embeddings else 0.1
        kept = 1.0 if value.ndim < 2 else 1 - rate * 0.5
        assert_close(value.detach(), before[name] * kept)
