"""A Ray that does not start is one line."""

import sys
from typing import Any

import pytest
import ray

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
