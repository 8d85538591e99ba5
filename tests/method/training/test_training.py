"""The training step against loops, two workers against one, a resumed run against a whole one."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import csr_of, rows_of
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn import functional

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.evaluation import Propensity, encode_rows, evaluate
from ramen_ray.method.model.encoder import Encoder, build_bag, build_transformer, load_encoder
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.sampling.batches import Batches, open_graphs
from ramen_ray.method.sampling.draws import Regularizer
from ramen_ray.method.training.checkpoints import (
    ENCODER_FOLDER,
    CheckpointError,
    read_state,
    restore_state,
    save_checkpoint,
)
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import (
    Objective,
    TrainState,
    global_losses,
    step_losses,
    train_steps,
)

LAMBDA_X = {"links": 0.5, "topics": 0.2}
LAMBDA_Z = {"links": 0.3, "topics": 0.1}
OBJECTIVE = Objective(0.3, 4, False, LAMBDA_X, LAMBDA_Z)
SOFT = Objective(0.3, 30, True, LAMBDA_X, LAMBDA_Z)
ONE_SIDED = Objective(0.3, 4, False, {"links": 0.5, "topics": 0.0}, {"topics": 0.1})
MARGIN = 0.3
SIDES = ("query", "ad")
KINDS = ["transformer", "bag"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def _build(kind: str, folder: Path) -> Encoder:
    return build_bag(str(folder)) if kind == "bag" else build_transformer(str(folder))


def _batches(data: Prepared, objective: Objective = OBJECTIVE, batch_size: int = 16) -> Batches:
    return Batches.of(data, objective.regularizers, batch_size, seed=3)


def _state(encoder: nn.Module, lr: float = 5e-3, total_steps: int = 40) -> TrainState:
    optimizer = build_optimizer(encoder, lr, weight_decay=0.01)
    return TrainState(encoder, optimizer, build_schedule(optimizer, 4, total_steps))


def _losses(state: TrainState, batches: Batches, stop: int) -> list[list[float]]:
    return global_losses(list(train_steps(state, batches, OBJECTIVE, stop))).tolist()


@pytest.fixture
def data(request: pytest.FixtureRequest, kind: str) -> Prepared:
    """The dataset prepared for the test's kind of encoder."""
    return request.getfixturevalue("prepared_bag" if kind == "bag" else "prepared")


class Recorder(nn.Module):
    """Stands in for an encoder and remembers the texts that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Embedding(100, 4)
        self.texts: list[tuple[int, ...]] = []

    def forward(self, texts: TokenBatch) -> Tensor:
        ends = np.cumsum(texts.lengths)
        split = np.split(texts.token_ids, ends[:-1])
        self.texts += [tuple(ids.tolist()) for ids in split]
        means = [self.weights(torch.from_numpy(ids)).mean(dim=0) for ids in split]
        return functional.normalize(torch.stack(means), dim=-1)


def _drawn_texts(batches: Batches, step: int) -> list[list[tuple[int, ...] | None]]:
    def text(column: int, row: int) -> tuple[int, ...] | None:
        return tuple(batches.tables[column].gather(np.array([row])).tolist()) if row >= 0 else None

    return [[text(c, row) for c, row in enumerate(rows)] for rows in batches.draw(step).tolist()]


def test_each_distinct_text_of_a_step_is_encoded_once_shortest_first(prepared: Prepared):
    batches, recorder = _batches(prepared), Recorder()
    for step in range(batches.steps_per_epoch):
        recorder.texts.clear()
        step_losses(recorder, batches, step, OBJECTIVE)
        drawn = [text for row in _drawn_texts(batches, step) for text in row if text]
        assert sorted(recorder.texts) == sorted(set(drawn))
        assert len(recorder.texts) < len(drawn)
        lengths = [len(text) for text in recorder.texts]
        assert lengths == sorted(lengths)


def test_an_anchor_set_without_weight_is_not_encoded(prepared: Prepared):
    objective = Objective(0.3, 4, False, {"links": 0.0, "topics": 0.0}, {"links": 0.1})
    assert objective.terms == ["task", "R_z/links"]
    assert objective.weights == [1.0, 0.1]
    batches, recorder = _batches(prepared, objective), Recorder()
    step_losses(recorder, batches, 0, objective)
    topics = prepared.anchors("topics")
    texts = {tuple(topics.gather(np.array([row])).tolist()) for row in range(len(topics))}
    assert recorder.texts
    assert not texts & set(recorder.texts)


@pytest.mark.parametrize("kind", ["bag"])
def test_of_several_steps_the_first_counts_for_the_anchors_of_all(
    kind: str, data: Prepared, encoder_path: Path
):
    encoder, batches, every = _build(kind, encoder_path), _batches(data), 3
    seldom = replace(OBJECTIVE, every_steps=every)
    without = Objective(0.3, 4, False, {}, {})
    for step in range(2 * every):
        plain = step_losses(encoder, batches, step, OBJECTIVE)
        found = step_losses(encoder, batches, step, seldom)
        torch.testing.assert_close(found[0], plain[0])
        torch.testing.assert_close(found[1:], plain[1:] * (0 if step % every else every))
        seen, expected = Recorder(), Recorder()
        step_losses(seen, batches, step, seldom)
        plain_batches = _batches(data, without if step % every else OBJECTIVE)
        step_losses(expected, plain_batches, step, without if step % every else OBJECTIVE)
        assert seen.texts == expected.texts


def _naive_terms(
    encoder: nn.Module,
    batches: Batches,
    step: int,
    objective: Objective,
    known: Mapping[Regularizer, list[list[int]]] | None = None,
) -> dict[str, Tensor]:
    """Return the terms by name; a node's ``known`` anchors are no negatives either."""
    draws = batches.draw(step).tolist()
    embedded = [
        [
            None if ids is None else encoder(TokenBatch(np.array(ids), np.array([len(ids)])))[0]
            for ids in row
        ]
        for row in _drawn_texts(batches, step)
    ]

    def term(
        row_column: int, own_column: int, columns: list[int], truth: list[list[int]]
    ) -> Tensor:
        pool = {
            row[c]: embedded[i][c] for i, row in enumerate(draws) for c in columns if row[c] >= 0
        }
        total = torch.zeros(())
        for row, vectors in zip(draws, embedded, strict=True):
            if row[own_column] < 0:
                continue
            own = vectors[row_column] @ vectors[own_column]
            known = truth[row[row_column]]
            similar = [vectors[row_column] @ pool[c] for c in pool if c not in known]
            similar = sorted(similar, key=Tensor.item, reverse=True)[: objective.num_negatives]
            violators = [s for s in similar if s - own + MARGIN > 0]
            norm = sum(torch.exp(s / 0.1) for s in violators)
            for s in violators:
                weight = torch.exp(s / 0.1) / norm if objective.softmax_weighting else 1.0
                count = min(objective.num_negatives, len(pool))
                total = total + weight * (s - own + MARGIN) / count / len(draws)
        return total

    hard = range(2 + len(batches.graphs), len(draws[0]))
    terms = {"task": term(0, 1, [1, *hard], rows_of(batches.clicks))}
    drawn = list(batches.graphs)
    for (name, side), edges in batches.graphs.items():
        truth = rows_of(edges)
        if known is not None:
            truth = [[*a, *b] for a, b in zip(truth, known[name, side], strict=True)]
        columns = [2 + drawn.index((name, s)) for s in SIDES if (name, s) in drawn]
        own = 2 + drawn.index((name, side))
        terms[f"R_{'xz'[SIDES.index(side)]}/{name}"] = term(SIDES.index(side), own, columns, truth)
    return terms


def _gradients(encoder: nn.Module, loss: Tensor) -> list[Tensor]:
    encoder.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in encoder.parameters()]


@pytest.mark.parametrize(
    "objective", [OBJECTIVE, SOFT, ONE_SIDED], ids=["hinge", "softmax", "one-sided"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_terms_and_gradients_equal_a_loop_that_encodes_every_text_alone(
    kind: str, data: Prepared, encoder_path: Path, objective: Objective
):
    encoder, batches = _build(kind, encoder_path), _batches(data, objective)
    weights = torch.tensor(objective.weights)
    for step in (0, batches.steps_per_epoch + 1):
        found = step_losses(encoder, batches, step, objective)
        by_name = _naive_terms(encoder, batches, step, objective)
        expected = torch.stack(list(by_name.values()))
        assert list(by_name) == objective.terms
        assert (expected > 0).all()
        torch.testing.assert_close(found, expected, **TOLERANCE)
        torch.testing.assert_close(
            _gradients(encoder, (found * weights).sum()),
            _gradients(encoder, (expected * weights).sum()),
            **TOLERANCE,
        )


def test_edges_that_another_graph_leaves_out_are_no_negatives(
    prepared_bag: Prepared, encoder_path: Path, tmp_path: Path
):
    whole, draw = _batches(prepared_bag), np.random.default_rng(0)
    for one, edges in whole.graphs.items():
        rows = rows_of(edges)
        num_anchors = len(prepared_bag.anchors(one.anchor_set))
        kept = [sorted({*row[::2], int(draw.integers(num_anchors))}) for row in rows]
        csr_of(kept).save(tmp_path / one.path)
    other = Batches.of(prepared_bag, OBJECTIVE.regularizers, 16, 3, tmp_path)
    encoder = _build("bag", encoder_path)
    known = {one: rows_of(edges) for one, edges in whole.graphs.items()}
    expected = _naive_terms(encoder, other, 0, OBJECTIVE, known)
    found = step_losses(encoder, other, 0, OBJECTIVE)
    torch.testing.assert_close(found, torch.stack(list(expected.values())), **TOLERANCE)
    blind = _naive_terms(encoder, other, 0, OBJECTIVE)
    assert not torch.allclose(found, torch.stack(list(blind.values())))
    other.graphs = open_graphs(tmp_path, OBJECTIVE.regularizers)
    torch.testing.assert_close(step_losses(encoder, other, 0, OBJECTIVE), found)


def _with_hard_negatives(data: Prepared) -> Batches:
    """Two hard negatives a query, from random shortlists, as ance has them; some are empty."""
    batches, draw = _batches(data), np.random.default_rng(0)
    batches.expect_hard_negatives(2)
    ads = [
        np.setdiff1d(draw.permutation(len(data.ads))[: row % 9], clicked)
        for row, clicked in enumerate(rows_of(batches.clicks))
    ]
    batches.shortlists = np.array([[*row, *[-1] * (9 - len(row))] for row in ads], dtype=np.int32)
    return batches


@pytest.mark.parametrize("kind", ["bag"])
def test_hard_negatives_join_the_pool_of_all_queries(kind: str, data: Prepared, encoder_path: Path):
    encoder, batches = _build(kind, encoder_path), _with_hard_negatives(data)
    draws = batches.draw(0)
    assert (draws[:, -2:] >= 0).any()
    assert (draws[:, -2:] == -1).any()
    clicked = rows_of(batches.clicks)
    assert not any(set(row[-2:]) & set(clicked[row[0]]) for row in draws.tolist())
    found = step_losses(encoder, batches, 0, OBJECTIVE)
    expected = torch.stack(list(_naive_terms(encoder, batches, 0, OBJECTIVE).values()))
    torch.testing.assert_close(found, expected, **TOLERANCE)
    torch.testing.assert_close(
        _gradients(encoder, found.sum()), _gradients(encoder, expected.sum()), **TOLERANCE
    )
    plain = step_losses(encoder, _batches(data), 0, OBJECTIVE)
    assert found[0] > plain[0]
    torch.testing.assert_close(found[1:], plain[1:], **TOLERANCE)


@pytest.mark.parametrize("kind", ["bag"])
def test_without_shortlists_yet_a_step_is_a_plain_one(
    kind: str, data: Prepared, encoder_path: Path
):
    encoder, batches = _build(kind, encoder_path), _batches(data)
    batches.expect_hard_negatives(3)
    plain = step_losses(encoder, _batches(data), 0, OBJECTIVE)
    assert torch.equal(step_losses(encoder, batches, 0, OBJECTIVE), plain)


@pytest.mark.parametrize("kind", ["bag"])
def test_steps_leave_the_embeddings_of_their_queries(kind: str, data: Prepared, encoder_path: Path):
    encoder, batches = _build(kind, encoder_path), _batches(data)
    batches.seen = torch.zeros((len(data.query_ids), encoder.dim), dtype=torch.float16)
    rows = np.concatenate([batches.draw(step)[:, 0] for step in range(batches.steps_per_epoch)])
    for step in range(batches.steps_per_epoch):
        step_losses(encoder, batches, step, OBJECTIVE)
    expected = encode_rows(encoder, data.queries["train"], rows)
    torch.testing.assert_close(
        batches.seen[rows].float(), torch.from_numpy(expected), rtol=0, atol=1e-3
    )
    left_out = np.setdiff1d(np.arange(len(data.query_ids)), rows)
    assert len(left_out)
    assert not batches.seen[left_out].any()


def test_bf16_terms_are_close_to_fp32(prepared: Prepared, encoder_path: Path):
    encoder, batches = _build("transformer", encoder_path), _batches(prepared)
    full = step_losses(encoder, batches, 0, OBJECTIVE)
    half = step_losses(encoder, batches, 0, OBJECTIVE, use_bf16=True)
    assert (half != full).any()
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.02)


def _three_steps(encoder: nn.Module, data: Prepared) -> dict[str, object]:
    """Three steps of plain SGD, and an evaluation."""
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    state = TrainState(encoder, optimizer, build_schedule(optimizer, 0, 100))
    losses, gradients = [], []
    for terms in train_steps(state, _batches(data), OBJECTIVE, stop=3):
        losses.append(terms)
        gradients.append([parameter.grad.clone() for parameter in encoder.parameters()])
    metrics, topk = evaluate(encoder, data, "test", Propensity())
    return {
        "losses": global_losses(losses).tolist(),
        "gradients": gradients,
        "parameters": [parameter.detach().clone() for parameter in encoder.parameters()],
        "metrics": metrics,
        "ads": topk[0].tolist(),
    }


def _two_workers(rank: int, folder: Path, encoder_path: Path, prepared: dict[str, Path]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    for kind, path in prepared.items():
        found = _three_steps(
            nn.parallel.DistributedDataParallel(_build(kind, encoder_path)), Prepared(path)
        )
        torch.save(found, folder / f"{kind}-{rank}.pt")
    gc.collect()  # a DDP model that outlives the process group can deadlock when it is freed
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_workers(
    prepared: Prepared,
    prepared_bag: Prepared,
    encoder_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder in which each of two processes left what its three steps gave."""
    folder = tmp_path_factory.mktemp("workers")
    paths = {"transformer": prepared.path, "bag": prepared_bag.path}
    multiprocessing.spawn(_two_workers, (folder, encoder_path, paths), nprocs=2)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_train_and_evaluate_as_one(
    kind: str, data: Prepared, encoder_path: Path, two_workers: Path
):
    expected = _three_steps(_build(kind, encoder_path), data)
    for rank in range(2):
        found = torch.load(two_workers / f"{kind}-{rank}.pt")
        for name in ("losses", "gradients", "parameters"):
            torch.testing.assert_close(found[name], expected[name], **TOLERANCE)
        assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
        assert found["ads"] == expected["ads"]


@pytest.mark.parametrize(("kind", "lr"), [("transformer", 5e-3), ("bag", 5e-2)])
def test_training_lowers_the_task_loss(kind: str, lr: float, data: Prepared, encoder_path: Path):
    losses = np.array(_losses(_state(_build(kind, encoder_path), lr), _batches(data), 40))
    assert losses[-6:, 0].mean() < 0.5 * losses[:3, 0].mean()
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_an_uninterrupted_one(
    kind: str, data: Prepared, encoder_path: Path, tmp_path: Path
):
    whole = _state(_build(kind, encoder_path))
    expected = _losses(whole, _batches(data), 9)

    first = _state(_build(kind, encoder_path))
    before = _losses(first, _batches(data), 4)
    save_checkpoint(tmp_path, first.encoder, first, 16, {"best": 0.25, "validations_since_best": 2})

    second = _state(load_encoder(tmp_path / ENCODER_FOLDER))
    content = read_state(tmp_path)
    restore_state(second, content)
    assert content["progress"] == {"best": 0.25, "validations_since_best": 2}
    assert second.step == 4
    after = _losses(second, _batches(data), 9)

    assert before + after == expected
    for found, wanted in zip(second.encoder.parameters(), whole.encoder.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_a_folder_without_training_state_is_no_checkpoint(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        read_state(tmp_path)


def test_gradients_are_clipped_to_the_norm(prepared_bag: Prepared, encoder_path: Path):
    encoder = build_bag(str(encoder_path))
    before = encoder.embedding.weight.detach().clone()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1.0)
    state = TrainState(encoder, optimizer, build_schedule(optimizer, 0, 1000))
    steps = train_steps(state, _batches(prepared_bag), OBJECTIVE, 1, max_gradient_norm=0.01)
    assert len(list(steps)) == 1
    assert (encoder.embedding.weight - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_rises_and_falls_linearly():
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([parameter], lr=8.0)
    schedule = build_schedule(optimizer, 4, 12)
    rates = []
    for _ in range(13):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0, 2, 4, 6, 8, 7, 6, 5, 4, 3, 2, 1, 0])


def test_only_matrices_are_decayed(encoder_path: Path):
    encoder = build_transformer(str(encoder_path))
    optimizer = build_optimizer(encoder, lr=0.1, weight_decay=0.5)
    before = {name: value.detach().clone() for name, value in encoder.named_parameters()}
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in encoder.named_parameters():
        kept = 1.0 if value.ndim < 2 else 1 - 0.1 * 0.5
        torch.testing.assert_close(value.detach(), before[name] * kept)


@pytest.mark.parametrize("kind", KINDS)
def test_token_embeddings_have_a_learning_rate_of_their_own(kind: str, encoder_path: Path):
    encoder = _build(kind, encoder_path)
    optimizer = build_optimizer(encoder, lr=0.1, weight_decay=0.0, embedding_lr=0.3)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    expected = {id(p): 0.1 for p in encoder.parameters()} | {id(encoder.token_embeddings): 0.3}
    assert rates == expected
    assert len(encoder.token_embeddings) == len(encoder.tokenizer)
