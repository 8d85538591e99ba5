"""The bases: what each needs in a configuration, and whole runs of each."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow.tracking import MlflowClient
from support import wait_until

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig, WalkConfig, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.training.checks import check_config
from ramen_ray.orchestration.training.results import TrainResult
from ramen_ray.orchestration.training.run import fit
from ramen_ray.presets import PRESETS

NUM_CPUS = 4


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


@pytest.fixture(scope="module")
def ance(cluster: None, config: RunConfig) -> TrainResult:
    return fit(overlay(config, {"base.kind": "ance", "name": "ance"}))


def test_bases_train_alike_until_they_have_seen_the_encoder(
    ngame: TrainResult, ance: TrainResult
) -> None:
    assert _losses(ngame)[:STEPS_PER_EPOCH] == _losses(ance)[:STEPS_PER_EPOCH]
    assert len(_losses(ngame)) == len(_losses(ance)) == NUM_EPOCHS * STEPS_PER_EPOCH
    assert _losses(ngame)[STEPS_PER_EPOCH] != _losses(ance)[STEPS_PER_EPOCH]
    for result in (ngame, ance):
        assert result.metrics["trained"]["validation"]["P@1"] > 0


def test_ance_refreshes_its_shortlists_at_epochs(ance: TrainResult) -> None:
    made = {path.name for path in (ance.run_directory / "shortlists").iterdir()}
    assert made == {"step_000000028"}, "only those in use are left"
    history = MlflowClient(tracking_uri=ance.run.uri).get_metric_history
    taken = [(point.step, point.value) for point in history(ance.run.id, "shortlists/step")]
    assert sorted(taken) == [(14, 14), (28, 28)]


def test_a_killed_worker_changes_nothing(config: RunConfig, ance: TrainResult) -> None:
    changes = {"base.kind": "ance", "name": "ance-killed"}
    killed = _fit_killing_a_worker(overlay(config, changes), at_step=18)
    for name in ("loss/task", "loss/total"):
        assert _losses(killed, name) == _losses(ance, name)
    assert killed.metrics == ance.metrics


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
    killed: list[int] = []
    killer = threading.Thread(target=_kill_worker_after, args=(checkpoint, killed))
    killer.start()
    result = fit(config)
    killer.join()
    assert killed
    return result


def _kill_worker_after(checkpoint: Path, killed: list[int]) -> None:
    wait_until(checkpoint.exists, f"no {checkpoint}")
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "RayTrainWorker" in " ".join(process.cmdline()):
                process.kill()
                killed.append(process.pid)
                return
