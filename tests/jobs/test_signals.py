"""Ctrl-C and SIGTERM end a job with their codes, without a traceback, and close its run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from support import PATIENCE_S, ROOT, wait_until

from ramen_ray.config import RunConfig, overlay
from ramen_ray.orchestration.training.run_directory import RunDirectory
from ramen_ray.tracking.runs import tracking_uri

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SLEEPS = """
import sys, time
from ramen_ray.command_line import run_job
def job():
    print("begun", flush=True)
    time.sleep(600)
sys.exit(run_job(job))
"""


@pytest.mark.parametrize("number", CODES)
def test_a_job_ends_with_the_code_of_its_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SLEEPS]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "begun\n"
        job.send_signal(number)
        _, said = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, said) == (CODES[number], "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES)
def test_training_ends_with_the_code_of_its_signal_and_a_run_that_is_killed(
    number: signal.Signals, small_run: RunConfig, tmp_path: Path
) -> None:
    config = overlay(small_run, {"name": f"ended-{number}", "training.epochs": 500})
    file, log = tmp_path / "config.json", tmp_path / "log"
    file.write_text(json.dumps(config.model_dump()))
    command = [sys.executable, str(ROOT / "jobs" / "train.py"), "--config", str(file)]
    run = RunDirectory.of(config.output, str(config.name))
    with log.open("wb") as output:
        job = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=os.environ)
    wait_until(lambda: any(run.path.glob("checkpoint_0*")), "no checkpoint")
    job.send_signal(number)
    assert job.wait(timeout=PATIENCE_S) == CODES[number], log.read_text()
    said = log.read_text()
    assert "interrupted" in said
    assert "Traceback" not in said
    assert "*** SIG" not in said
    client = MlflowClient(tracking_uri(Path(config.output)))
    assert client.get_run(run.notes["mlflow_run_id"]).info.status == "KILLED"
