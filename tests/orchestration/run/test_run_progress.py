"""A run's progress in its folder, on a terminal and in a log."""

import logging
import os
import pty
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from support import wait_until

from ramen_ray import long_work
from ramen_ray.orchestration.run import progress
from ramen_ray.orchestration.run.progress import LiveProgress, read_progress, shown_progress


@pytest.fixture
def log(monkeypatch, caplog):
    """Returns the lines logged so far, by a watcher that looks often."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(long_work, "FIRST_LINE_S", 0)
    monkeypatch.setattr(long_work, "BETWEEN_LINES_S", 0)
    caplog.set_level(logging.INFO)
    return lambda: caplog.messages


def test_a_log_gets_lines_with_the_time_left(tmp_path, log):
    LiveProgress(30, 40, "of an earlier attempt").write(tmp_path)
    with shown_progress(tmp_path):
        assert read_progress(tmp_path) is None
        for epoch in (1, 2, 3):
            LiveProgress(10 * epoch, 40, f"epoch {epoch}").write(tmp_path)
            wait_until(lambda text=f"epoch {epoch}": text in " ".join(log()), "not logged")
    assert log()[0] == "step 10/40  epoch 1"
    steps = [line.partition("  ")[0] for line in log()]
    assert [*dict.fromkeys(steps)] == ["step 10/40", "step 20/40", "step 30/40"]
    assert all(" left  epoch" in line for line in log() if not line.startswith("step 10"))


def test_a_terminal_has_one_line_that_changes(tmp_path, monkeypatch):
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    def train():
        with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            with shown_progress(tmp_path):
                for step in (10, 20, 30):
                    LiveProgress(step, 40, f"epoch {step // 10}/4: task 0.5").write(tmp_path)
                    wait_until((tmp_path / f"seen-{step}").exists, "not shown")

    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train)
        written = b""
        for part in _read_terminal(ours):
            written += part
            for step in (10, 20, 30):
                if f"step {step}/40".encode() in written:
                    (tmp_path / f"seen-{step}").touch()
        trained.result()
    shown = written.decode()
    assert shown.count("\n") == 1
    for part in ("step 10/40", "step 30/40", "epoch 3/4: task 0.5", "left"):
        assert part in shown


def _read_terminal(terminal):
    with os.fdopen(terminal, "rb", buffering=0) as stream, suppress(OSError):  # EIO is its end
        while part := stream.read(4096):
            yield part
