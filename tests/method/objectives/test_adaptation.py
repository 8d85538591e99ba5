"""Adaptive weights: the rule against loops, good and random graphs, workers, checkpoints."""

import gc
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import rows_of
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn import functional

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.evaluation import encode_rows
from ramen_ray.method.model.encoder import Encoder, build_bag, load_encoder
from ramen_ray.method.objectives.adaptation import Adaptation, gain, leads
from ramen_ray.method.sampling.batches import Batches
from ramen_ray.method.training.checkpoints import (
    ENCODER_FOLDER,
    read_state,
    restore_state,
    save_checkpoint,
)
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import Objective, TrainState, train_steps

WEIGHTS = {"links": 0.4, "topics": 0.2}
OBJECTIVE = Objective(0.3, 4, False, WEIGHTS, WEIGHTS)
STEP_SIZE = 0.01


def _batches(data: Prepared, objective: Objective = OBJECTIVE) -> Batches:
    return Batches.of(data, objective.regularizers, 16, seed=3)


def _state(
    encoder: nn.Module, objective: Objective = OBJECTIVE, step_size: float = STEP_SIZE
) -> TrainState:
    optimizer = build_optimizer(encoder, 1e-2, weight_decay=0.01)
    adaptation = Adaptation(objective.weights, step_size, torch.device("cpu"))
    return TrainState(encoder, optimizer, build_schedule(optimizer, 4, 60), adaptation=adaptation)


def _weights(
    state: TrainState, batches: Batches, stop: int, objective: Objective = OBJECTIVE
) -> list[list[float]]:
    """Train up to ``stop``; returns each step's weights (steps, terms)."""
    return [state.adaptation.weights.tolist() for _ in train_steps(state, batches, objective, stop)]


def _loop_lead(
    row: np.ndarray, own: np.ndarray, candidates: np.ndarray, positive: list[bool]
) -> np.ndarray:
    rivals = [c for c, is_positive in zip(candidates, positive, strict=True) if not is_positive]
    if not rivals:
        return np.zeros_like(row)
    return own - max(rivals, key=lambda rival: float(row @ rival))


def _loop_gains(encoder: Encoder, batches: Batches, step: int) -> list[float]:
    """Return each regulariser's gains in a step, row by row."""
    draws = batches.draw(step).tolist()
    tables = batches.tables
    of = [
        [encode_rows(encoder, table, np.array([n]))[0] if n >= 0 else None for n in column]
        for table, column in zip(tables, zip(*draws, strict=True), strict=True)
    ]
    clicks = rows_of(batches.clicks)
    clicked = [[ad in clicks[query] for _, ad, *_ in draws] for query, *_ in draws]
    ahead = (
        [_loop_lead(of[0][i], of[1][i], of[1], clicked[i]) for i in range(len(draws))],
        [
            _loop_lead(of[1][i], of[0][i], of[0], [row[i] for row in clicked])
            for i in range(len(draws))
        ],
    )
    gains = []
    for column, regularizer in enumerate(batches.graphs, start=2):
        node = regularizer.node_column
        mean = np.mean([anchor for anchor in of[column] if anchor is not None], axis=0)
        total = 0.0
        for i, anchor in enumerate(of[column]):
            if anchor is not None:
                row, pull = of[node][i], anchor - mean
                total += float(ahead[node][i] @ (pull - (pull @ row) * row))
        gains.append(total)
    return gains


def test_the_weights_follow_a_loop_over_rows(prepared_bag: Prepared, encoder_path: Path) -> None:
    batches, state = _batches(prepared_bag), _state(build_bag(str(encoder_path)))
    bounds = np.array(list(OBJECTIVE.regularizers.values()))
    expected, moves = bounds, []
    for step in range(8):
        gains = np.array(_loop_gains(state.encoder, batches, step))
        expected = np.clip(expected * np.exp(STEP_SIZE * gains), 0.01 * bounds, bounds)
        (found,) = _weights(state, batches, step + 1)
        assert found == pytest.approx([1.0, *expected], rel=1e-4)
        moves.append(gains)
    assert np.min(moves) < 0 < np.max(moves)


def test_a_row_moves_ahead_of_its_nearest_rival() -> None:
    corners = torch.eye(4)
    candidates = torch.stack([corners[1], functional.normalize(corners[0] + corners[2], dim=0)])
    free, taken = torch.tensor([[False, False]]), torch.tensor([[False, True]])
    ahead = [
        leads(corners[:1], corners[3:], candidates, positive)
        for positive in (free, taken, torch.tensor([[True, True]]))
    ]
    torch.testing.assert_close(ahead[0], corners[3:] - candidates[1])
    torch.testing.assert_close(ahead[1], corners[3:] - candidates[0])
    assert not ahead[2].any(), "without a rival a row says nothing"
    towards_own = gain(ahead[1], corners[:1], corners[3:], torch.zeros(4))
    towards_rival = gain(ahead[1], corners[:1], candidates[:1], torch.zeros(4))
    assert (towards_own.item(), towards_rival.item()) == (1, -1)


def test_a_weight_stays_between_its_bounds_and_comes_back() -> None:
    adaptation = Adaptation([1.0, 0.5, 0.2], STEP_SIZE, torch.device("cpu"))
    adaptation.observe(torch.tensor([-1e4, 1e4]))
    assert adaptation.weights.tolist() == pytest.approx([1.0, 0.005, 0.2])
    adaptation.observe(torch.tensor([100 * math.log(10), 0.0]))
    assert adaptation.weights.tolist() == pytest.approx([1.0, 0.05, 0.2])


def _shuffled(edges: Csr, draw: np.random.Generator) -> Csr:
    rows = np.repeat(np.arange(edges.num_rows), np.diff(edges.indptr))
    pairs = np.unique(np.stack([rows, draw.permutation(edges.indices)]), axis=1)
    return Csr.from_pairs(*pairs, edges.num_rows)


def test_a_random_graph_loses_weight_and_a_good_one_does_not(
    prepared_bag: Prepared, encoder_path: Path
) -> None:
    objective = Objective(0.3, 4, False, {"links": 0.1}, {})

    def last_weight(batches: Batches) -> float:
        state = _state(build_bag(str(encoder_path)), objective, step_size=0.05)
        return _weights(state, batches, 60, objective)[-1][1]

    random = []
    for seed in range(3):
        batches, draw = _batches(prepared_bag, objective), np.random.default_rng(seed)
        batches.graphs = {one: _shuffled(edges, draw) for one, edges in batches.graphs.items()}
        random.append(last_weight(batches))
    assert max(random) < 0.07 < last_weight(_batches(prepared_bag, objective))


def test_a_side_without_weight_has_none(prepared_bag: Prepared, encoder_path: Path) -> None:
    objective = Objective(0.3, 4, False, {"links": 0.1, "topics": 0.0}, {"topics": 0.2})
    batches = _batches(prepared_bag, objective)
    state = _state(build_bag(str(encoder_path)), objective)
    assert np.shape(_weights(state, batches, 5, objective)) == (5, 3)


def test_weights_move_in_steps_with_anchors_as_far_as_in_all(
    prepared_bag: Prepared, encoder_path: Path
) -> None:
    first = _weights(_state(build_bag(str(encoder_path))), _batches(prepared_bag), 1)[0]
    seldom = replace(OBJECTIVE, every_steps=3)
    state = _state(build_bag(str(encoder_path)), seldom)
    moved = np.array(_weights(state, _batches(prepared_bag), 4, seldom))
    assert (moved[0] == moved[1:3]).all()
    assert (moved[3] != moved[2])[1:].any()
    assert (np.array(first) < OBJECTIVE.weights).any()
    thrice = np.array(OBJECTIVE.weights) * (np.array(first) / OBJECTIVE.weights) ** 3
    assert moved[0] == pytest.approx(thrice, rel=1e-5)


def _two_workers(rank: int, folder: Path, encoder_path: Path, prepared: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    encoder = build_bag(str(encoder_path))
    state = _state(encoder)
    state.encoder = nn.parallel.DistributedDataParallel(encoder)
    weights = _weights(state, _batches(Prepared(prepared)), 6)
    torch.save(weights, folder / f"{rank}.pt")
    del state
    gc.collect()  # a DDP model that outlives the process group can deadlock when it is freed
    distributed.destroy_process_group()


def test_two_workers_move_the_weights_as_one(
    prepared_bag: Prepared, encoder_path: Path, tmp_path: Path
) -> None:
    state = _state(build_bag(str(encoder_path)))
    expected = _weights(state, _batches(prepared_bag), 6)
    multiprocessing.spawn(_two_workers, (tmp_path, encoder_path, prepared_bag.path), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert found[0] == found[1]
    assert np.array(found[0]) == pytest.approx(np.array(expected), rel=1e-4)


def _parameters(encoder: Encoder) -> Tensor:
    return nn.utils.parameters_to_vector(encoder.parameters())


def test_a_resumed_run_has_the_same_weights(
    prepared_bag: Prepared, encoder_path: Path, tmp_path: Path
) -> None:
    whole = _state(build_bag(str(encoder_path)))
    expected = _weights(whole, _batches(prepared_bag), 9)
    first = _state(build_bag(str(encoder_path)))
    before = _weights(first, _batches(prepared_bag), 4)
    save_checkpoint(tmp_path, first.encoder, first, 16, {})
    second = _state(load_encoder(tmp_path / ENCODER_FOLDER))
    restore_state(second, read_state(tmp_path))
    assert before + _weights(second, _batches(prepared_bag), 9) == expected
    assert torch.equal(_parameters(second.encoder), _parameters(whole.encoder))
