"""Adaptive weights: the rule against loops, good and random graphs, workers, checkpoints."""

import gc
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn

from ramen_ray.data.csr import Csr
from ramen_ray.data.prepared import Prepared
from ramen_ray.method.adaptation import Adaptation, evidence_scores, pull_sums, tangent
from ramen_ray.method.checkpoints import (
    ENCODER_FOLDER,
    read_state,
    restore_state,
    save_checkpoint,
)
from ramen_ray.method.encoder import Encoder, build_bag, load_encoder
from ramen_ray.method.optimization import build_optimizer, build_schedule
from ramen_ray.method.training import Batches, Objective, TrainState, train_steps

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


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def _loop_pulls(
    gradient: np.ndarray, embeddings: np.ndarray, rows: list[int], anchors: list[int]
) -> list[float]:
    drawn = [embeddings[anchor] for anchor in anchors if anchor >= 0]
    pulls = []
    for row, anchor in zip(rows, anchors, strict=True):
        if anchor >= 0 and gradient[row].any():
            own = embeddings[row]
            descent = _unit(-gradient[row] + (gradient[row] @ own) * own)
            pulls.append(float(descent @ embeddings[anchor] - descent @ np.mean(drawn, axis=0)))
    return pulls


@pytest.mark.parametrize("nodes", [[0, 1], [1, 0], [1, 1]])
def test_the_weights_follow_a_loop_over_rows(nodes: list[int]) -> None:
    draw = np.random.default_rng(0)
    adaptation = Adaptation([1.0, 0.4, 0.2], STEP_SIZE, torch.device("cpu"))
    expected, history = [0.4, 0.2], ([], [])
    for _ in range(12):
        embeddings = np.stack([_unit(v) for v in draw.normal(size=(30, 5))])
        direction = draw.normal(size=(30, 5)) * (draw.random(30) < 0.8)[:, None]
        position = draw.integers(0, 30, (8, 4))
        position[draw.random((8, 4)) < 0.2] = -1
        position[:, :2] = draw.permutation(30)[:16].reshape(8, 2)
        for row, anchor in position[:, [nodes[0], 2]]:  # the first regulariser agrees with the task
            direction[row] -= 5 * embeddings[anchor] if anchor >= 0 else 0
        leaf = torch.tensor(embeddings, requires_grad=True)
        adaptation.observe((leaf * torch.tensor(direction)).sum(), leaf, position, nodes)
        for number, rows in enumerate(history):
            columns = position[:, nodes[number]].tolist(), position[:, 2 + number].tolist()
            rows.append(_loop_pulls(direction, embeddings, *columns))
            aged = [(0.95**age, p) for age, of in enumerate(reversed(rows)) for p in of]
            count = sum(weight for weight, _ in aged)
            mean = sum(weight * pull for weight, pull in aged) / count
            variance = sum(weight * (pull - mean) ** 2 for weight, pull in aged) / count
            score = mean / math.sqrt(variance / count)
            moved = expected[number] * math.exp(STEP_SIZE * min(max(score - 2, -1), 1))
            expected[number] = min(moved, [0.4, 0.2][number])
        assert adaptation.weights.tolist() == pytest.approx([1.0, *expected], rel=1e-5)
    assert expected[0] > 0.38
    assert expected[1] < 0.2 * math.exp(-0.05)


def test_a_pull_straight_to_the_anchor_is_one() -> None:
    corners = torch.eye(6, dtype=torch.float64)
    rows, anchors = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    descent = tangent(corners[anchors] + 7 * corners[rows], corners[rows])
    count, total, squares = pull_sums(descent, corners, anchors).tolist()
    others = 1 / 3  # share of the own anchor in the mean
    assert (count, total, squares) == pytest.approx((3, 3 * (1 - others), 3 * (1 - others) ** 2))


def test_rows_without_anchor_or_descent_have_no_say() -> None:
    corners = torch.eye(4, dtype=torch.float64)
    descent = torch.stack([torch.zeros(4, dtype=torch.float64), corners[1]])
    assert pull_sums(descent, corners, torch.tensor([2, -1])).tolist() == [0, 0, 0]
    assert evidence_scores(torch.zeros(2, 3, dtype=torch.float64)).tolist() == [0, 0]


def _shuffled(edges: Csr, draw: np.random.Generator) -> Csr:
    rows = np.repeat(np.arange(edges.num_rows), np.diff(edges.indptr))
    pairs = np.unique(np.stack([rows, draw.permutation(edges.indices)]), axis=1)
    return Csr.from_pairs(*pairs, edges.num_rows)


def test_a_random_graph_loses_weight_from_the_start_and_a_good_one_does_not(
    prepared_bag: Prepared, encoder_path: Path
) -> None:
    objective = Objective(0.3, 4, False, {"links": 0.1}, {})
    good, bad = (_batches(prepared_bag, objective) for _ in range(2))
    draw = np.random.default_rng(1)
    bad.graphs = {one: _shuffled(edges, draw) for one, edges in bad.graphs.items()}
    found = {}
    for name, batches in (("good", good), ("bad", bad)):
        state = _state(build_bag(str(encoder_path)), objective)
        found[name] = _weights(state, batches, 12, objective)[-1]
    assert found["good"][1] > 0.098
    assert found["bad"][1] < 0.092
    assert found["good"][0] == found["bad"][0] == 1


def test_a_side_without_weight_is_not_looked_at(
    prepared_bag: Prepared, encoder_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = Objective(0.3, 4, False, {"links": 0.1, "topics": 0.0}, {"topics": 0.2})
    batches = _batches(prepared_bag, objective)
    state = _state(build_bag(str(encoder_path)), objective)
    assert np.shape(_weights(state, batches, 5, objective)) == (5, 3)
    assert (state.adaptation.evidence[:, 0] > 0).all()
    columns: list[list[int]] = []
    monkeypatch.setattr(state.adaptation, "observe", lambda *given: columns.append(given[-1]))
    _weights(state, batches, 6, objective)
    assert columns == [[0, 1]]


def _two_workers(rank: int, folder: Path, encoder_path: Path, prepared: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    encoder = build_bag(str(encoder_path))
    state = _state(encoder)
    state.encoder = nn.parallel.DistributedDataParallel(encoder)
    weights = _weights(state, _batches(Prepared(prepared)), 6)
    torch.save({"weights": weights, "evidence": state.adaptation.evidence}, folder / f"{rank}.pt")
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
    assert found[0]["weights"] == found[1]["weights"]
    assert torch.equal(found[0]["evidence"], found[1]["evidence"])
    assert np.array(found[0]["weights"]) == pytest.approx(np.array(expected), rel=1e-4)
    torch.testing.assert_close(
        found[0]["evidence"], state.adaptation.evidence, rtol=1e-3, atol=1e-4
    )


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
