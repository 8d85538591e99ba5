"""How jobs start Ray; one that does not start is one line."""

import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import ray

from ramen_ray.orchestration.cluster import joining
from ramen_ray.orchestration.cluster.joining import start_ray

DASHBOARD_IS_LATE = "\nThe last 20 lines of /tmp/ray/dashboard.log (it contains the error message"
JOB = SimpleNamespace(main=start_ray)


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (Exception(DASHBOARD_IS_LATE), "Run the same command again"),
        (ConnectionError("no cluster at 10.0.0.1:6379.\nDetails"), "10.0.0.1:6379"),
    ],
)
def test_a_ray_that_does_not_start_is_told_in_one_line(error, place, refused, monkeypatch):
    def fails(**_):
        raise error

    _without_ray(monkeypatch, fails)
    assert place in refused(JOB)


def _without_ray(monkeypatch, init):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "local")


@pytest.mark.parametrize("said", ["The node timed out during startup. This", DASHBOARD_IS_LATE])
def test_a_ray_that_is_too_slow_is_started_again_without_what_the_first_has_left(
    said, monkeypatch, caplog
):
    started = []

    def is_slow(**_):
        started.append(subprocess.Popen(["sleep", "600"]).pid)
        if len(started) < joining.TRIES:
            raise Exception(said)

    _without_ray(monkeypatch, is_slow)
    joining.in_a_few_tries(lambda: ray.init())
    *earlier, last = started
    assert len(earlier) == joining.TRIES - 1
    assert not any(map(psutil.pid_exists, earlier))
    psutil.Process(last).kill()
    assert len(caplog.records) == len(earlier)


def test_sigterm_while_ray_starts_ends_a_job_as_at_other_times(run_here, monkeypatch):
    def starts(**_):
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as Ray does
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("ramen_ray.command_line.SECONDS_TO_END", 3600)
    _without_ray(monkeypatch, starts)
    try:
        assert run_here(JOB) == (143, "interrupted\n")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("names", ["RAY_ADDRESS", "file"])
def test_a_cluster_that_does_not_answer_is_told_in_one_line(names, refused, monkeypatch, tmp_path):
    _without_ray(monkeypatch, None)
    monkeypatch.setattr(joining, "ANSWERS_WITHIN_S", 0.5)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as mute:  # as another program, or a hung cluster
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        if names == "file":
            monkeypatch.delenv("RAY_ADDRESS")
            (tmp_path / "ray").mkdir()
            (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        else:
            monkeypatch.setenv("RAY_ADDRESS", address)
        assert address in refused(JOB)
