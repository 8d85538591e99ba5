"""The bases: what each needs of a configuration, and whole runs of each."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from support import kill_train_worker, wait_until

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig, WalkConfig, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.step import global_losses, train_steps
from ramen_ray.orchestration.preparation.pipeline import prepare
from ramen_ray.orchestration.training.checks import check_config
from ramen_ray.orchestration.training.components import (
    build_model,
    build_objective,
    build_sampler,
    build_state,
    encoder_tokenizer,
)
from ramen_ray.orchestration.training.results import TrainResult
from ramen_ray.orchestration.training.run import fit
from ramen_ray.presets import PRESETS


def test_presets_follow_the_papers_table() -> None:
    ance, ngame = PRESETS["ramen-ance"](), PRESETS["ramen-ngame"]()
    plain = PRESETS["lf-wikiseealsotitles-320k"]()
    for preset in (ance, ngame):
        assert preset.model_copy(update={"base": plain.base}) == plain
        assert preset.training.global_batch_size == 1024
        assert preset.training.epochs == 300
        assert preset.optimizer.lr == 2e-4
        assert preset.encoder.max_length == 32
        assert preset.loss.margin == 0.3
        assert preset.walk == WalkConfig(enabled=True)
        assert (preset.walk.num_hops, preset.walk.restart_probability) == (400, 0.8)
        assert (preset.walk.max_anchor_degree, preset.walk.top_k) == (500, 10)
        assert (preset.pruning.warmup_epochs, preset.pruning.every_epochs) == (10, 5)
        assert preset.pruning.prune_threshold == 0
        assert preset.base.refresh_every == 5
    assert (ance.base.kind, ngame.base.kind) == ("ance", "ngame")
    assert plain.base.kind == "in_batch"
    assert ngame.base.double_cluster_size_at == (25, 50, 75, 100, 125, 150, 175, 200)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"base.kind": "ance"}, "base.refresh_every 5"),
        ({"base.kind": "ance", "base.refresh_every": 1}, "base.refresh_every 1"),
        ({"base.kind": "ngame"}, "base.first_clustered_epoch 10"),
        (
            {
                "base.kind": "ngame",
                "base.first_clustered_epoch": 1,
                "base.double_cluster_size_at": (1, 1, 2),
                "base.cluster_size": 4,
            },
            "base.cluster_size 4 doubles to 16",
        ),
        (
            {
                "base.kind": "ngame",
                "base.first_clustered_epoch": 1,
                "base.refresh_every": 2,
                "base.double_cluster_size_at": (3, 4),
                "training.epochs": 6,
            },
            "base.double_cluster_size_at 4: .*base.refresh_every 2 .*base.first_clustered_epoch 1 ",
        ),
    ],
)
def test_a_base_that_cannot_work_is_refused(
    changes: dict[str, Any], fragment: str, dataset_path: Path, encoder_path: Path
) -> None:
    config = {
        "dataset": str(dataset_path),
        "regularization.lambda_x": {},
        "regularization.lambda_z": {},
        "training.epochs": 2,
        "training.global_batch_size": 8,
    }
    plain = RunConfig(encoder=EncoderConfig(pretrained=str(encoder_path)))
    check_config(overlay(plain, config), Dataset(dataset_path))
    with pytest.raises(ConfigError, match=fragment):
        check_config(overlay(plain, config | changes), Dataset(dataset_path))


STEPS_PER_EPOCH, NUM_EPOCHS = 7, 5


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    return overlay(
        small_run,
        {
            "encoder.kind": "transformer",
            "optimizer.lr": 1e-3,
            "regularization.adaptive": True,
            "regularization.every_steps": 2,
            "base.refresh_every": 2,
            "base.refresh_mode": "synchronous",
            "base.shortlist_size": 10,
            "base.num_hard_negatives": 2,
            "base.first_clustered_epoch": 1,
            "base.cluster_size": 2,
            "base.double_cluster_size_at": (3,),
            "pruning.mode": "synchronous",
            "pruning.warmup_epochs": 1,
            "pruning.every_epochs": 2,
            "training.epochs": NUM_EPOCHS,
            "training.checkpoint_every_steps": 3,
        },
    )


@pytest.fixture(scope="module")
def ngame(cluster: None, config: RunConfig) -> TrainResult:
    return fit(overlay(config, {"base.kind": "ngame", "name": "ngame"}))


def _first_steps(config: RunConfig, num_steps: int) -> list[float]:
    """Return the task losses of a run's first steps, made in this process."""
    tokenizer = encoder_tokenizer(config.encoder)
    data = prepare(Dataset(config.dataset), Path(config.output) / "prepared", tokenizer)
    objective, model = build_objective(config), build_model(config.encoder)
    training_data = TrainingData.from_prepared(data, objective.regularizers, data.path / "edges")
    sampler = build_sampler(config, data, training_data)
    state = build_state(config, model, model, sampler)
    losses: list[np.ndarray] = []
    clip = config.optimizer.max_gradient_norm
    while state.step < num_steps:
        state.advance_curriculum()
        stop = min(state.step + STEPS_PER_EPOCH, num_steps)
        steps = train_steps(state, sampler, objective, stop, max_gradient_norm=clip)
        losses.extend(global_losses(list(steps)))
    return np.array(losses)[:, objective.names.index("task")].tolist()


def test_bases_train_alike_until_they_have_seen_the_encoder(
    config: RunConfig, ngame: TrainResult
) -> None:
    first = STEPS_PER_EPOCH + 1
    ours = {
        base: _first_steps(overlay(config, {"base.kind": base}), first)
        for base in ("ance", "ngame")
    }
    trained = _losses(ngame)
    assert len(trained) == NUM_EPOCHS * STEPS_PER_EPOCH
    assert trained[:first] == pytest.approx(ours["ngame"], abs=1e-5)
    assert ours["ngame"][:-1] == ours["ance"][:-1]
    assert ours["ngame"][-1] != pytest.approx(ours["ance"][-1], abs=1e-4)
    assert ngame.metrics["trained"]["validation"]["P@1"] > 0


def test_two_workers_of_which_one_is_killed_end_like_one(
    config: RunConfig, ngame: TrainResult
) -> None:
    changes = {"base.kind": "ngame", "name": "two", "workers.num_workers": 2}
    # Checkpoint 18 lies in an epoch whose embeddings are kept for the next clusters.
    killed = _fit_killing_a_worker(overlay(config, changes), at_step=18)
    for name in ("loss/task", "loss/total"):
        assert _losses(killed, name) == pytest.approx(_losses(ngame, name), abs=1e-4)
    for split in ("validation", "test"):
        for name, value in ngame.metrics["trained"][split].items():
            assert killed.metrics["trained"][split][name] == pytest.approx(value, abs=0.02), name


def _losses(result: TrainResult, name: str = "loss/task") -> list[float]:
    client = MlflowClient(tracking_uri=result.run.uri)
    history = client.get_metric_history(result.run.id, name)
    return [value for _, value in sorted((point.step, point.value) for point in history)]


def _fit_killing_a_worker(config: RunConfig, at_step: int) -> TrainResult:
    """Train, and kill the worker when the checkpoint of ``at_step`` is there."""
    checkpoint = Path(config.output) / "runs" / str(config.name) / f"checkpoint_{at_step:09d}"
    killed: list[bool] = []
    killer = threading.Thread(target=_kill_worker_after, args=(checkpoint, killed))
    killer.start()
    result = fit(config)
    killer.join()
    assert killed == [True]
    return result


def _kill_worker_after(checkpoint: Path, killed: list[bool]) -> None:
    wait_until(checkpoint.exists, f"no {checkpoint}")
    killed.append(kill_train_worker())
