"""Whole runs on a real Ray: their results, and that a killed run ends like an undisturbed one."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import RunHere
from mlflow.tracking import MlflowClient
from support import ROOT, wait_until

from jobs import train
from ramen_ray.config import RunConfig, overlay, read_config
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.evaluation.checkpoint import evaluate_checkpoint
from ramen_ray.orchestration.training.results import TrainResult
from ramen_ray.orchestration.training.run import fit
from ramen_ray.tracking.runs import Run

NUM_CPUS = 4
AMID_SECOND_EPOCH = "checkpoint_000000009"  # an epoch of the made dataset has 7 steps


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    return overlay(
        small_run,
        {
            "encoder.kind": "transformer",
            "regularization.lambda_z": {"links": 0.1, "topics": 0.0},
            "regularization.adaptive": True,
            "regularization.every_steps": 2,
            "optimizer.lr": 1e-3,
            "training.checkpoint_every_steps": 3,
        },
    )


@pytest.fixture(scope="module")
def unharmed(cluster: None, config: RunConfig) -> TrainResult:
    return fit(overlay(config, {"name": "unharmed"}))


def test_a_run_leaves_a_tracked_model(unharmed: TrainResult, config: RunConfig) -> None:
    client = MlflowClient(tracking_uri=unharmed.run.uri)
    run = client.get_run(unharmed.run.id)
    steps = {
        name: [point.step for point in client.get_metric_history(run.info.run_id, name)]
        for name in ("loss/task", "loss/R_z/links", "loss/total", "lambda_x/links")
    }
    weights = client.get_metric_history(run.info.run_id, "lambda_x/links")
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    plots = {file.path for file in client.list_artifacts(run.info.run_id, "plots")}
    assert run.info.status == "FINISHED"
    assert run.data.params["regularization.lambda_x.links"] == "0.1"
    assert float(run.data.params["dataset.num_train_queries"]) == 60
    assert steps["loss/task"] == steps["lambda_x/links"] == list(range(1, 29))
    assert steps["loss/R_z/links"] == steps["loss/total"] == list(range(1, 29, 2))
    assert 0.07 < weights[-1].value < 0.101
    assert run.data.metrics["test/P_at_1"] == unharmed.metrics["trained"]["test"]["P@1"]
    terms = {"total", "task", "R_x/links", "R_z/links", "R_x/topics"}
    assert {name for name in run.data.metrics if name.startswith("loss/")} == {
        f"loss/{term}" for term in terms
    }
    assert "lambda_z/topics" not in run.data.metrics
    assert {"throughput/queries_per_s", "validation/R_at_10"} <= run.data.metrics.keys()
    assert {"config.json", "plots", "sample_predictions.json"} <= artifacts
    (model,) = run.outputs.model_outputs
    logged = client.get_logged_model(model.model_id)
    assert {metric.key for metric in logged.metrics} >= {"test/P_at_1", "index/recall_at_100"}
    assert run.data.metrics["index/recall_at_100"] == 1.0
    drawn = ("losses", "weights", "validation", "head_torso_tail")
    assert plots == {f"plots/{name}.png" for name in drawn}
    assert unharmed.metrics["trained"]["validation"]["P@1"] > 0
    assert not [name for name in run.data.metrics if name.startswith("graph/")]
    assert not (unharmed.run_directory / "graphs").exists()
    assert read_config(unharmed.run_directory / "config.json").training == config.training


def test_the_sample_marks_true_clicks(unharmed: TrainResult, dataset_path: Path) -> None:
    client = MlflowClient(tracking_uri=unharmed.run.uri)
    file = client.download_artifacts(unharmed.run.id, "sample_predictions.json")
    table = json.loads(Path(file).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    dataset = Dataset(dataset_path)
    ads = dataset.read("ads")["text"].to_pylist()
    rows = [row for row in rows if ads.count(row["ad"]) == 1]
    clicked = {
        (row["text"], ads[ad])
        for row in dataset.read("queries/test").to_pylist()
        for ad in row["ad_ids"]
    }
    assert rows
    for row in rows:
        assert (row["hit"] == "hit") == ((row["query"], row["ad"]) in clicked)


def test_only_the_best_and_the_last_checkpoint_are_kept(unharmed: TrainResult) -> None:
    kept = sorted(folder.name for folder in unharmed.run_directory.glob("checkpoint_0*"))
    assert "checkpoint_000000028" in kept
    assert unharmed.encoder.parent.name in kept
    assert len(kept) <= 2


def test_evaluate_gives_what_training_measured(unharmed: TrainResult) -> None:
    metrics = evaluate_checkpoint(unharmed.run_directory, "test")
    assert metrics == pytest.approx(unharmed.metrics["trained"]["test"], abs=1e-12)


def test_a_killed_driver_and_then_a_killed_worker_change_nothing(
    config: RunConfig, unharmed: TrainResult, run_here: RunHere, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.model_dump()))
    words = ["--config", str(file), "--name", "killed"]
    run_directory = Path(config.output) / "runs" / "killed"
    command = [sys.executable, str(ROOT / "jobs" / "train.py"), *words]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    wait_until((run_directory / AMID_SECOND_EPOCH).exists, "no checkpoint amid an epoch")
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = json.loads((run_directory / "run.json").read_text())
    assert not before.get("finished")
    killed: list[int] = []
    killer = threading.Thread(target=_kill_worker_late, args=(run_directory, killed))
    killer.start()
    code, said = run_here(train, *words)
    killer.join()
    assert (code, len(killed)) == (0, 1), said
    after = json.loads((run_directory / "run.json").read_text())
    best = unharmed.encoder.parent.name
    assert after.items() >= {**before, "finished": True, "best_checkpoint": best}.items()
    assert after["metrics"] == unharmed.metrics
    run = Run(unharmed.run.uri, after["mlflow_run_id"])
    assert _losses(run) == _losses(unharmed.run)
    logged = MlflowClient(tracking_uri=run.uri).get_run(run.id).data.metrics
    for name, value in unharmed.metrics["trained"]["test"].items():
        assert logged[f"test/{name}".replace("@", "_at_")] == value, name


def _losses(run: Run) -> list[set[tuple[int, float]]]:
    """Return each step's losses once: a kill can come before a logged step is noted."""
    client = MlflowClient(tracking_uri=run.uri)
    histories = [client.get_metric_history(run.id, name) for name in ("loss/task", "loss/total")]
    return [{(point.step, point.value) for point in history} for history in histories]


def _kill_worker_late(run_directory: Path, killed: list[int]) -> None:
    """Kill the worker in the third epoch, or in the fourth if the driver died that late."""
    late = [run_directory / f"checkpoint_{step:09d}" for step in (18, 24)]

    def kill() -> bool:
        if not any(checkpoint.exists() for checkpoint in late):
            return False
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "RayTrainWorker" in " ".join(process.cmdline()):
                    process.kill()
                    killed.append(process.pid)
                    return True
        return False

    wait_until(kill, "no worker to kill")
