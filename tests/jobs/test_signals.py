"""Ctrl-C and SIGTERM end a job with their codes, without a traceback, and close its run."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient
from support import PATIENCE_S, ROOT, begin_training, ended_by, run_python, wait_until

from ramen_ray.command_line import RAY_IS_LOST
from ramen_ray.config import overlay, write_config
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.tracking.addresses import tracking_uri

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SLEEPS = """
import sys, time
from ramen_ray.command_line import run_job
def job():
    print("begun", flush=True)
    time.sleep(600)
run_job(job)
"""


HANGS = """
import threading, time
from ramen_ray import command_line
command_line.SECONDS_TO_END = 1
threading.Thread(target=time.sleep, args=[600]).start()
"""


@pytest.mark.parametrize("begins", ["", HANGS])
@pytest.mark.parametrize("number", CODES)
def test_a_job_ends_with_the_code_of_its_signal(number, begins):
    assert ended_by(number, begins + SLEEPS) == (CODES[number], "interrupted\n")


def test_ctrl_c_while_a_job_loads_its_libraries_is_one_line():
    loads = "import ramen_ray.command_line as job; raise KeyboardInterrupt"
    assert run_python("-c", loads, code=130).stderr == "interrupted\n"


def test_a_job_whose_output_nobody_reads_ends_without_a_word():
    prints = "from ramen_ray.command_line import run_job\n"
    prints += "run_job(lambda: [print('line') for _ in range(100_000)])"
    command = [sys.executable, "-c", prints]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        job.stdout.readline()
        job.stdout.close()
        assert job.stderr.read() == ""
    assert job.returncode == 128 + signal.SIGPIPE


def _end(number, job, flags, ready):
    """End a job when it is ready; returns what it said. Nothing it started is left running."""
    words = [ROOT / "jobs" / job, *flags]
    command = [sys.executable, *map(str, words)]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        wait_until(lambda: process.poll() is not None or ready(), f"{words} does not begin")
        below = psutil.Process(process.pid).children(recursive=True)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        said = process.communicate(timeout=PATIENCE_S)[0].decode()
    assert process.returncode == CODES[number], said
    assert said.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in said
    assert "*** SIG" not in said
    wait_until(lambda: not any(map(_runs, below)), f"{words} leaves processes")
    return said


def _runs(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _long(small_run, name, folder):
    """Configure a run that does not end by itself, in an experiment of its own, and in a file."""
    config = overlay(small_run, {"name": name, "experiment": name, "training.epochs": 500})
    write_config(config, folder / "config.json")
    return config, folder / "config.json"


def _statuses(config):
    client = MlflowClient(tracking_uri(Path(config.output)))
    known = client.get_experiment_by_name(config.experiment)
    return [run.info.status for run in client.search_runs([known.experiment_id])]


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES)
def test_training_ends_with_the_code_of_its_signal_and_a_run_that_is_killed(
    number, small_run, tmp_path
):
    config, file = _long(small_run, f"ended-{number}", tmp_path)
    run = RunDirectory.of(config.output, config.name)
    _end(number, "train.py", ["--config", file], lambda: any(run.path.glob("checkpoint_0*")))
    assert _statuses(config) == ["KILLED"]


@pytest.mark.slow
def test_training_whose_own_ray_loses_its_control_process_ends_in_one_line_and_goes_on(
    small_run, tmp_path
):
    config, file = _long(small_run, "lost", tmp_path)
    run = RunDirectory.of(config.output, "lost")
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    with begin_training(config, tmp_path, env=environment, stderr=subprocess.PIPE) as job:
        wait_until(lambda: any(run.path.glob("checkpoint_0*")), "no checkpoint")
        below = psutil.Process(job.pid).children(recursive=True)
        (control,) = [one for one in below if one.name() == "gcs_server"]
        control.kill()
        said = job.communicate(timeout=PATIENCE_S)[1].decode()
    assert job.returncode == 2, said
    assert f"error: {RAY_IS_LOST}" in said.splitlines()
    assert "Traceback" not in said
    assert _statuses(config) == ["KILLED"]
    wait_until(lambda: not any(map(_runs, below)), "processes are left")
    latest = max(run.path.glob("checkpoint_0*"))
    said = _end(
        signal.SIGTERM,
        "train.py",
        ["--config", file],
        lambda: max(run.path.glob("checkpoint_0*")) > latest,
    )
    step = int(max(run.path.glob("checkpoint_0*")).name[-9:])
    assert said.endswith(f"interrupted; the same command goes on after step {step}\n")
    assert len(_statuses(config)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES)
def test_a_sweep_ends_with_the_code_of_its_signal_and_runs_that_are_killed(
    number, small_run, tmp_path
):
    config, file = _long(small_run, f"swept-{number}", tmp_path)
    flags = ["--config", file, "--space", "optimizer", "--num-samples", 2]
    runs = Path(config.output) / "runs"
    _end(number, "tune.py", flags, lambda: any(runs.glob(f"{config.name}-*/checkpoint_0*")))
    assert set(_statuses(config)) == {"KILLED"}
