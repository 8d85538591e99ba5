"""How jobs start Ray; one that does not start is one line."""

import os
import subprocess
import sys
from typing import Any

import pytest
import ray
from support import ROOT

from ramen_ray.command_line import run_job
from ramen_ray.orchestration.cluster.resources import DASHBOARD_ADDRESS, start_ray


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            Exception("The current node timed out during startup. This could happen because"),
            "Ray has not started in time; is the machine too busy? Run the same command again",
        ),
        (
            ConnectionError("no cluster at 10.0.0.1:6379.\nDetails"),
            "no cluster at 10.0.0.1:6379; if",
        ),
    ],
)
def test_a_ray_that_does_not_start_is_told_in_one_line(
    error: Exception,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[dict[str, Any]] = []

    def fails(**settings: Any) -> None:
        asked.append(settings)
        raise error

    monkeypatch.setattr(sys, "argv", ["job.py"])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fails)
    monkeypatch.setenv(DASHBOARD_ADDRESS, "of the user")
    assert run_job(lambda: start_ray()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: cannot join the Ray cluster: {message}")
    assert said.count("\n") == 1
    assert len({settings["dashboard_port"] for settings in asked}) == 1


def test_workers_do_not_let_other_processes_go_first() -> None:
    code = (
        "import os, ray\n"
        "from ramen_ray.orchestration.cluster.resources import start_ray\n"
        "start_ray()\n"
        "print(ray.get(ray.remote(lambda: os.nice(0)).remote()))"
    )
    environment = {**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)}
    del environment["RAY_worker_niceness"]  # of the tests' own Ray
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["0"], answer.stderr
