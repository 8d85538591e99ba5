"""The guides' commands, run as they are written.

With SCREENSHOTS=docs/images in the environment, they take new pictures of the UI.
"""

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from browser import needs_chromium
from screenshots import take_screenshots
from support import PATIENCE_S, ROOT, running

SERVERS = ("mlflow ui", "jobs/serve.py")
NOT_RUN = "text"


@pytest.fixture
def project(tmp_path):
    """The project's folder as a new user has it; what is written stays in tmp_path."""
    for name in ("jobs", "datasets", "tune_spaces"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def environment(head):
    """The variables of an active environment, and a Ray cluster that jobs share."""
    return {**os.environ, "RAY_ADDRESS": head.address}


def _blocks(guide):
    """Return the (language, block) pairs to run."""
    text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(language, block) for language, block in found if language != NOT_RUN]


def _run(language, block, folder, environment):
    command = [sys.executable, "-c", block] if language == "python" else ["bash", "-ec", block]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_first_hour_next_week_and_own_tables(project, environment):
    guides = ("tutorials/first_hour.md", "tutorials/next_week.md", "how_to/own_tables.md")
    blocks = [block for guide in guides for block in _blocks(guide)]
    printed = "".join(_run(*block, project, environment) for block in blocks)
    assert "shop@champion is version 3" in printed
    outputs = project / "outputs"
    assert "wrote shop to" in printed
    assert "errors: 0" in printed
    assert (outputs / "descriptions" / "shop.html").exists()
    anchor_sets = {path.stem for path in (outputs / "shop" / "anchors").iterdir()}
    assert anchor_sets == {"category", "co_click", "co_session", "similar"}
    assert (project / "predictions.html").exists()
    for name in ("shop-by-time", "shop-as-given", "shop-again"):
        assert (outputs / name / "dataset.json").exists()


@needs_chromium
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_sweep_to_service(project, environment):
    printed = ""
    with ExitStack() as servers:
        for language, block in _blocks("tutorials/sweep_to_service.md"):
            if not any(server in block for server in SERVERS):
                printed += _run(language, block, project, environment)
                continue
            port = re.findall(r"--port (\d+)", block)[0]
            log = project / "server.log"
            with socket.socket() as probe:
                taken = not probe.connect_ex(("127.0.0.1", int(port)))
            assert not taken, f"another server has port {port}, which the guide uses; end it first"
            health = f"http://127.0.0.1:{port}/health"
            command = ["bash", "-ec", block]
            server = running(command, log, health, cwd=project, env=environment)
            servers.enter_context(server)
            if "mlflow ui" in block:
                pictures = Path(os.environ.get("SCREENSHOTS", project))
                take_screenshots(f"http://127.0.0.1:{port}", "first-search", pictures)
    assert "python jobs/train.py tiny" in printed
    assert "dictionary@champion is version 1: the first of its name" in printed
    assert "is version 1 again, no longer version 2" in printed
    assert "2 new" in printed
    assert '"ads":["large language model"' in printed
