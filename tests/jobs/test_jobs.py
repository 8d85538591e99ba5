"""The commands as people and clusters run them."""

import json
import os
import re
import shutil
import sys
import time

import mlflow
import pytest
from conftest import free_port
from ray.job_submission import JobStatus, JobSubmissionClient
from short_runs import train_here
from stores import choose
from support import PATIENCE_S, ROOT, running, wait_until

from jobs import train
from ramen_ray.config import overlay, read_config, write_config
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.tune import beside_base
from ramen_ray.presets import tiny
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.runs import DESCRIPTION_TAG, Run


@pytest.fixture
def mlflow_server(empty_store, tmp_path):
    """An MLflow server on loopback that keeps runs in sqlite and hands artifacts on to a folder."""
    shutil.copy(empty_store, tmp_path / "server.db")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--workers", "1"]
    command += ["--artifacts-destination", str(tmp_path / "kept")]
    address = f"http://127.0.0.1:{port}"
    log = tmp_path / "server.log"
    no_job_runners = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with running(command, log, f"{address}/health", env=no_job_runners):
        yield address


def _submit(address, entrypoint, folder=ROOT, **env_vars):
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


@pytest.mark.slow
def test_a_submitted_job_is_tracked_by_a_server(
    head, mlflow_server, small_run, tmp_path, monkeypatch
):
    monkeypatch.delenv("RAY_ADDRESS")  # it would take precedence over the client's address
    config = overlay(small_run, {"name": "submitted", "output": str(tmp_path)})
    write_config(config, tmp_path / "config.json")
    command = f"{sys.executable} jobs/train.py --config {tmp_path}/config.json"
    with_password = mlflow_server.replace("http://", "http://ann:s3cret@")
    client, job = _submit(head.dashboard, command, MLFLOW_TRACKING_URI=with_password)
    wait_until(lambda: client.get_job_status(job).is_terminal(), lambda: client.get_job_logs(job))
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, logs
    assert re.search(r"^step 28/28  .*epoch 4/4: P@1 .* task ", logs, re.MULTILINE), logs
    ours = [line for line in logs.splitlines() if "(PlacementGroupCleaner" not in line]
    assert "pid=" not in "".join(ours), logs  # Ray's cleaner reports other clusters on the machine
    assert len(ours) < 60, logs  # a busy machine adds a line for every twenty seconds
    assert not (tmp_path / "mlflow.db").exists()
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in written if b"s3cret" in file.read_bytes()]
    assert "s3cret" not in logs
    run_id = RunDirectory.of(config.output, "submitted").mlflow_run_id
    registry = Registry(mlflow_server)
    model_id = registry.find_logged(str(run_id), None)[1]
    assert choose(registry, "submitted", str(run_id), model_id) == "1"
    retriever = registry.load("models:/submitted@champion")
    assert len(retriever.answer(["robin"], 3)["ads"][0]) == 3
    mlflow.set_tracking_uri(None)


def test_a_run_is_shown_beside_its_base(cluster, small_run, done, tmp_path, monkeypatch):
    monkeypatch.setattr(beside_base, "train_in_all_workers", train_here)
    learns_nothing = {"optimizer.lr": 1e-12, "training.early_stop_patience": 1}
    config = overlay(small_run, {**learns_nothing, "name": "mine"})
    write_config(config, tmp_path / "config.json")
    printed = done(train, "--config", tmp_path / "config.json", "--with-base")
    directory = RunDirectory.of(config.output, "mine")
    run = Run(f"sqlite:///{config.output}/mlflow.db", str(directory.mlflow_run_id))
    tracked = run.client.get_run(run.id)
    assert (tracked.info.status, run.read_history("validation/P@1")[0]) == ("FINISHED", [7, 14])
    value = f"{100 * tracked.data.metrics['test/P_at_1']:.2f}"
    for row in ("in_batch", r"in_batch \+ graph"):
        assert re.search(rf"test\s+│ {row}\s+│ {value}", printed), printed
    assert re.search(r"over in_batch\s+│ \+0\.00 \[\+0\.00, \+0\.00\]", printed), printed
    described = re.sub(" +", " ", tracked.data.tags[DESCRIPTION_TAG])
    assert re.search(r"over in_batch \(encoder, step \d+/\d+\) \| \+0\.00", described), described
    (beside,) = directory.path.parent.glob("*-in_batch-*")
    graph = read_config(beside / "config.json").regularization
    assert graph.lambda_x == graph.lambda_z == {}


def test_print_config_shows_every_setting_and_trains_nothing(tmp_path, done):
    output = tmp_path / "outputs"
    said = done(train, "tiny", "--print-config", "--seed", 7, "--output", output)
    config = overlay(tiny(), {"seed": 7, "output": str(output)})
    assert json.loads(said) == config.model_dump(mode="json")
    assert not output.exists()
