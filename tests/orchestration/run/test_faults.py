"""Whole runs at once, or whose machine or disk fails, end with the numbers of one unharmed."""

import os
import shutil
import subprocess

import pytest
from mlflow.tracking import MlflowClient
from support import PATIENCE_S, WAITS_FOR_TASKS, begin_training, resize, the_error

from jobs import train
from ramen_ray.config import overlay, write_config
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.tracking.addresses import tracking_uri

pytestmark = pytest.mark.slow

CHANGES = {
    "walk.enabled": True,
    **WAITS_FOR_TASKS,
    "base.refresh_every": 2,
    "pruning.every_epochs": 2,
    "training.checkpoint_every_steps": 3,
}


def _trainings(config, names, folder, **environment):
    """Run trainings at once, each with a Ray of its own; returns their codes and what they said."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    options = {**output, "env": {**os.environ, "RAY_ADDRESS": "local", **environment}}
    named = [overlay(config, {"name": name}) for name in names]
    begun = [begin_training(one, folder, **options) for one in named]
    said = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in begun]
    return [(process.returncode, one) for process, one in zip(begun, said, strict=True)]


def _metrics(config, name):
    return RunDirectory.of(config.output, name).notes["metrics"]


def _weights(config, name):
    best = RunDirectory.of(config.output, name).best_checkpoint
    files = best.rglob("*.safetensors")
    return {str(file.relative_to(best)): file.read_bytes() for file in files}


def test_two_trainings_at_once_prepare_walk_and_log_the_same_thing(
    config, unharmed, empty_store, tmp_path
):
    shutil.copy(empty_store, tmp_path)
    shared = overlay(config, {"output": str(tmp_path), "experiment": "both"})
    names = ["one", "other"]
    for name, (code, said) in zip(names, _trainings(shared, names, tmp_path), strict=True):
        assert code == 0, said
        assert _metrics(shared, name) == unharmed.metrics
        assert _weights(shared, name) == _weights(config, "unharmed")
        assert "Traceback" not in said, said
    assert len(list((tmp_path / "prepared").glob("[!.]*"))) == 1
    assert len(list((tmp_path / "walked").glob("[!.]*"))) == 1
    client = MlflowClient(tracking_uri(tmp_path))
    experiment = client.get_experiment_by_name("both").experiment_id
    statuses = [run.info.status for run in client.search_runs([experiment])]
    assert statuses == ["FINISHED", "FINISHED"]


def test_a_machine_without_memory_is_told_and_the_run_goes_on(
    config, unharmed, empty_store, tmp_path
):
    scarce = {
        "RAY_memory_usage_threshold": "0.01",  # so that Ray's monitor ends all tasks and workers
        "RAY_memory_monitor_refresh_ms": "100",
        "RAY_task_oom_retries": "1",
    }
    shutil.copy(empty_store, tmp_path)
    config = overlay(config, {"output": str(tmp_path)})
    ((code, said),) = _trainings(config, ["scarce"], tmp_path, **scarce)
    assert code == 2, said
    assert "a process has died, by a lack of memory" in the_error(said)
    ((code, said),) = _trainings(config, ["scarce"], tmp_path)
    assert code == 0, said
    assert _metrics(config, "scarce") == unharmed.metrics


def test_a_run_on_a_disk_that_is_full_again_and_again_goes_on_to_the_same_numbers(
    config, unharmed, empty_store, small_disk, run_here, tmp_path
):
    size = empty_store.stat().st_size // 1024 + 200  # the prepared data do not quite fit
    resize(small_disk, size)
    shutil.copy(empty_store, small_disk)
    file = tmp_path / "config.json"
    write_config(overlay(config, {"output": str(small_disk), "name": "full"}), file)
    run = small_disk / "runs" / "full"
    stages = []
    while True:
        code, said = run_here(train, "--config", file)
        if code == 0:
            break
        assert code == 2, said
        assert "no room is left" in (error := the_error(said)) or "is full" in error, said
        prepared = any((small_disk / "prepared").glob("[!.]*"))
        walked = any((small_disk / "walked").glob("[!.]*/*/*"))
        checkpoints = any(run.glob("checkpoint_0*"))
        stages.append((prepared, walked, checkpoints))
        size += max(size // 8, 64) if checkpoints else 24
        resize(small_disk, size)
    assert RunDirectory(run).notes["metrics"] == unharmed.metrics
    assert len(set(stages)) >= 3, stages
