"""The guides' commands, run as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Head
from support import PATIENCE_S

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "your_own_data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's folder as a newcomer has it, but what is written stays in tmp_path."""
    for name in ("jobs", "datasets"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def _run(language: str, block: str, folder: Path, address: str) -> str:
    command = [sys.executable, "-c", block] if language == "python" else ["bash", "-ec", block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RAY_ADDRESS": address}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bring_your_own_data(project: Path, head: Head) -> None:
    said = "".join(_run(*block, project, head.address) for block in BLOCKS)
    assert "wrote mine to" in said
    assert "errors: 0" in said
    assert (project / "outputs" / "descriptions" / "mine.html").exists()
    assert {path.stem for path in (project / "mine" / "anchors").iterdir()} == {
        "co_click",
        "co_session",
        "links",
        "similar",
    }
    assert (project / "predictions.parquet").exists()
    for dataset in ("mine", "shop", "mine-again", "mine-novel"):
        assert (project / dataset / "dataset.json").exists()
