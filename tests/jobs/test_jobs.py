"""The commands as people and clusters run them."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from conftest import free_port
from mlflow.tracking import MlflowClient
from ray.job_submission import JobStatus, JobSubmissionClient
from stores import choose
from support import PATIENCE_S, ROOT, running, wait_until

from jobs import train
from ramen_ray.config import overlay
from ramen_ray.orchestration.cluster import joining
from ramen_ray.presets import tiny
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.runs import DESCRIPTION_TAG

TOO_FEW_EPOCHS = "training.epochs 2 is too few, as these would never be used: pruned graphs after"


def _flags(encoder_path: Path, output: Path) -> list[str]:
    """Train on little data, so slowly that the second validation is no better than the first."""
    return [
        *("--encoder.kind", "bag", "--encoder.pretrained", str(encoder_path)),
        *("--training.global-batch-size", "8", "--training.epochs", "4"),
        *("--optimizer.lr", "1e-12", "--training.early-stop-patience", "1"),
        *("--workers.cpus-per-worker", "1", "--output", str(output)),
    ]


@pytest.fixture
def mlflow_server(empty_store: Path, tmp_path: Path) -> Iterator[str]:
    """An MLflow server on loopback that keeps runs in sqlite and hands artifacts on to a folder."""
    shutil.copy(empty_store, tmp_path / "server.db")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--workers", "1"]
    command += ["--artifacts-destination", str(tmp_path / "kept")]
    address, log = f"http://127.0.0.1:{port}", tmp_path / "server.log"
    no_job_runners = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with running(command, log, f"{address}/health", env=no_job_runners):
        yield address


def _submit(
    address: str, entrypoint: str, folder: Path = ROOT, **env_vars: str
) -> tuple[JobSubmissionClient, str]:
    """Submit a job in a copy of ``folder``, as soon as the job server and its agent are up."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client = JobSubmissionClient(address)
            return client, client.submit_job(
                entrypoint=entrypoint,
                runtime_env={"working_dir": str(folder), "env_vars": env_vars},
            )
        except (ConnectionError, RuntimeError) as error:
            assert time.monotonic() < deadline, f"no job server at {address}: {error}"
            time.sleep(0.5)


def _logs_of(client: JobSubmissionClient, job: str) -> str:
    """Return what a job says, which must succeed."""
    wait_until(lambda: client.get_job_status(job).is_terminal(), lambda: client.get_job_logs(job))
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, logs
    return logs


def test_a_submitted_job_trains_beside_its_base_and_is_tracked_by_a_server(
    head, mlflow_server, dataset_path, encoder_path, prepared_by_runs, tmp_path, monkeypatch
):
    (tmp_path / "prepared").symlink_to(prepared_by_runs)
    monkeypatch.delenv("RAY_ADDRESS")  # it would take precedence over the client's address
    flags = " ".join(["--dataset", str(dataset_path), *_flags(encoder_path, tmp_path)])
    command = f"{sys.executable} jobs/train.py tiny --with-base --name submitted {flags}"
    with_password = mlflow_server.replace("http://", "http://ann:s3cret@")
    client, job = _submit(head.dashboard, command, MLFLOW_TRACKING_URI=with_password)
    logs = _logs_of(client, job)
    run_id = json.loads((tmp_path / "runs" / "submitted" / "run.json").read_text())["mlflow_run_id"]
    tracked = MlflowClient(tracking_uri=mlflow_server)
    run = tracked.get_run(run_id)
    validated = tracked.get_metric_history(run_id, "validation/P_at_1")
    assert sorted(point.step for point in validated) == [7, 14]
    (report,) = (tmp_path / "runs" / "submitted").glob("checkpoint_0*/report.json")
    assert json.loads(report.read_text())["is_last"], "no trial is stopped here"
    assert run.info.status == "FINISHED"
    assert not (tmp_path / "mlflow.db").exists()
    assert not [name for name in run.data.metrics if name.startswith("graph/")]
    assert not (tmp_path / "runs" / "submitted" / "graphs").exists()
    assert re.search(r"^step 14/28  .*epoch 2/4: P@1 .* task ", logs, re.MULTILINE), logs
    ours = [line for line in logs.splitlines() if "(PlacementGroupCleaner" not in line]
    assert "pid=" not in "".join(ours), logs  # Ray's cleaner reports other clusters on the machine
    assert len(ours) < 60, logs  # a busy machine adds a line for every twenty seconds
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in written if b"s3cret" in file.read_bytes()]
    assert "s3cret" not in logs
    shown = re.search(r"test\s+│ in_batch \+ graph\s+│ ([\d.]+)", logs)
    assert shown is not None, logs
    assert float(shown.group(1)) == pytest.approx(100 * run.data.metrics["test/P_at_1"], abs=0.005)
    base = re.search(r"test\s+│ in_batch\s+│ ([\d.]+)", logs)
    assert base is not None and base.group(1) == shown.group(1), "at that rate nothing is learnt"
    assert re.search(r"over in_batch\s+│ \+0\.00 \[\+0\.00, \+0\.00\]", logs), logs
    described = re.sub(" +", " ", run.data.tags[DESCRIPTION_TAG])
    assert re.search(r"over in_batch \(encoder, step \d+/\d+\) \| \+0\.00", described), described
    assert "training 2 of 2: in_batch + graph" in logs.splitlines()
    (beside,) = (tmp_path / "runs").glob("*-in_batch-*")
    settings = json.loads((beside / "config.json").read_text())["regularization"]
    assert settings["lambda_x"] == settings["lambda_z"] == {}
    registry = Registry(mlflow_server)
    model_id = registry.find_logged(run_id, None)[1]
    assert registry.register("submitted", run_id, model_id) == "1"
    assert choose(registry, "submitted", run_id, model_id) == "1"
    retriever = registry.load("models:/submitted@champion")
    assert len(retriever.answer(["robin"], 3)["ads"][0]) == 3
    mlflow.set_tracking_uri(None)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("encoder.pretrained", "./no/encoder", "no encoder folder at ./no/encoder"),
        ("training.global-batch-size", "100000", "fewer than training.global_batch_size 100000"),
        ("training.selection-metric", "P@2", "training.selection_metric 'P@2'"),
        ("pruning.mode", "asynchronous", TOO_FEW_EPOCHS),
        ("index.kind", "ivf_pq", "index.kind ivf_pq learns its cells from at least"),
        ("output", "/proc/nowhere", "cannot write"),
    ],
)
def test_bad_input_is_one_clear_line(flag, value, message, tmp_path, refused, monkeypatch):
    given = {"output": tmp_path / "outputs", flag: value}.items()
    monkeypatch.setattr(joining, "start_ray", lambda **_: None)  # none of these needs it
    assert message in refused(train, "tiny", *(f"--{one}={other}" for one, other in given))
    assert not list(tmp_path.rglob("*.parquet")) + list(tmp_path.rglob("checkpoint*"))


def test_print_config_shows_every_setting_and_trains_nothing(tmp_path, done):
    output = tmp_path / "outputs"
    said = done(train, "tiny", "--print-config", "--seed", 7, "--output", output)
    config = overlay(tiny(), {"seed": 7, "output": str(output)})
    assert json.loads(said) == config.model_dump(mode="json")
    assert not output.exists()
