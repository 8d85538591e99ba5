"""Training with the embeddings of the dataset's tokens gives what training with all would."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from support import run_in_two_processes
from torch import distributed, nn

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.encoder import Encoder, build_bag, build_transformer
from ramen_ray.method.model.occurring_tokens import OccurringTokens, keep_tokens
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.sampling.batches import Sampler, Sources
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.checkpoints import restore_checkpoint, save_checkpoint
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import TrainState, train_steps
from ramen_ray.method.training.step_losses import global_losses

KINDS = ["transformer", "bag"]
OBJECTIVE = ramen_objective(TripletLoss(0.3, 4), {"links": 0.3}, {"links": 0.2})
STEPS = 6
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


class Run:
    """A run with large weight decay; ``is_cut`` if it has the dataset's tokens only."""

    def __init__(self, data: Prepared, encoder: Encoder, is_cut: bool) -> None:
        self.data, self.model = data, DualEncoder(encoder)
        if is_cut:
            keep_tokens(encoder, data.occurring_tokens)
        training_data = TrainingData.from_prepared(data, OBJECTIVE.regularizers)
        self.sampler = Sampler(training_data, 16, seed=3)
        trained: nn.Module = self.model
        if distributed.is_initialized():
            trained = nn.parallel.DistributedDataParallel(trained)
        optimizer = build_optimizer(encoder, 2e-2, 0.5, 5e-2)
        schedule = build_schedule(optimizer, 2, 2 * STEPS)
        self.state = TrainState(trained, optimizer, schedule, Sources(training_data.graphs))

    def train(self, stop: int = STEPS) -> list[list[float]]:
        """Return the losses (steps, terms) up to a step."""
        losses = list(train_steps(self.state, self.sampler, OBJECTIVE, stop))
        return global_losses(losses).tolist()

    def metrics(self) -> dict[str, float]:
        return evaluate(self.model, self.data, "test", Propensity())[0]

    def saved(self, folder: Path) -> Encoder:
        """Return the encoder as it is loaded from a checkpoint."""
        save_checkpoint(folder, self.model, self.state, 16, {})
        return load_model(folder).encoder


def _build(kind: str, folder: Path) -> Encoder:
    return build_bag(str(folder)) if kind == "bag" else build_transformer(str(folder))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def data(kind: str, prepared: Prepared, prepared_bag: Prepared) -> Prepared:
    return prepared_bag if kind == "bag" else prepared


def test_losses_metrics_and_saved_weights_are_those_of_all_tokens(
    kind: str, data: Prepared, encoder_path: Path, tmp_path: Path
):
    whole = Run(data, _build(kind, encoder_path), is_cut=False)
    cut = Run(data, _build(kind, encoder_path), is_cut=True)
    start = _build(kind, encoder_path).token_embeddings
    assert len(cut.model.encoder.token_embeddings) < len(start)
    assert cut.train() == whole.train()
    assert cut.metrics() == whole.metrics()

    saved = cut.saved(tmp_path)
    for found, wanted in zip(saved.parameters(), whole.model.encoder.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, **CLOSE)
    occurring = torch.from_numpy(data.occurring_tokens)
    rows, expected = saved.token_embeddings, whole.model.encoder.token_embeddings
    assert torch.equal(rows[occurring], expected[occurring])
    others = np.setdiff1d(np.arange(len(start)), occurring)
    decayed = rows[others].norm() / start[others].norm()
    assert 0 < decayed < 0.95
    assert cut.train(STEPS + 1) == whole.train(STEPS + 1)  # saving leaves the run as it was


def test_a_resumed_run_equals_an_uninterrupted_one(
    kind: str, data: Prepared, encoder_path: Path, tmp_path: Path
):
    expected = Run(data, _build(kind, encoder_path), is_cut=True)
    losses = expected.train(2 * STEPS)
    first = Run(data, _build(kind, encoder_path), is_cut=True)
    before = first.train()
    second = Run(data, first.saved(tmp_path), is_cut=True)
    restore_checkpoint(tmp_path, second.state)
    assert before + second.train(2 * STEPS) == losses
    assert second.metrics() == expected.metrics()


def test_a_checkpoint_keeps_moments_of_occurring_tokens(
    prepared_bag: Prepared, encoder_path: Path, tmp_path: Path
):
    run = Run(prepared_bag, build_bag(str(encoder_path)), is_cut=True)
    run.train(1)
    run.saved(tmp_path)
    (state,) = torch.load(tmp_path / "state.pt", weights_only=True)["optimizer"]["state"].values()
    num_rows = len(np.union1d(prepared_bag.occurring_tokens, [0])) + 1
    assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (num_rows, 32)


def test_the_row_of_a_padding_token_is_not_trained():
    whole = nn.Embedding(10, 4, padding_idx=7)
    cut = OccurringTokens(whole, np.array([3, 7, 8]))
    token_ids = torch.tensor([[3, 8, 0], [8, 7, 7]])
    assert torch.equal(cut(token_ids), whole(token_ids))
    cut(token_ids).sum().backward()
    assert cut.tokens.tolist() == [0, 3, 7, 8]
    assert cut.weight.grad[:, 0].tolist() == [1, 1, 0, 2, 0]


def test_a_token_that_was_cut_out_has_no_embedding():
    cut = OccurringTokens(nn.Embedding(10, 4), np.array([3, 8]))
    with pytest.raises(IndexError, match="out of range"):
        cut(torch.tensor([3, 5]))
    bag = OccurringTokens(nn.EmbeddingBag(10, 4, mode="mean"), np.array([3, 8]))
    with pytest.raises(RuntimeError, match="not in the valid range"):
        bag(torch.tensor([3, 5]), torch.tensor([0]))


def _worker(rank: int, folder: Path, encoder_path: Path, prepared: dict[str, Path]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    found = {}
    for kind, path in prepared.items():
        for is_cut in (False, True):
            run = Run(Prepared(path), _build(kind, encoder_path), is_cut)
            found[kind, is_cut] = run.train(), run.metrics()
            del run
    torch.save(found, folder / f"{rank}.pt")
    gc.collect()  # a DDP model that outlives the process group can deadlock when it is freed
    distributed.destroy_process_group()


def test_two_workers_train_as_with_all_tokens(
    prepared: Prepared, prepared_bag: Prepared, encoder_path: Path, tmp_path: Path
):
    paths = {"transformer": prepared.path, "bag": prepared_bag.path}
    run_in_two_processes(_worker, tmp_path, encoder_path, paths)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    assert found[0] == found[1]
    for kind in KINDS:
        assert found[0][kind, True] == found[0][kind, False]
