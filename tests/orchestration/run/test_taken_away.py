"""Runs whose store, folder or data are deleted, or made read-only, while they train."""

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import RunHere
from mlflow.tracking import MlflowClient
from support import the_error

from jobs import train, tune
from ramen_ray.config import RunConfig, overlay, write_config
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.fit import fit
from ramen_ray.told import beside

pytestmark = pytest.mark.slow

DELETED = {
    "mlflow.db": "cannot use the MLflow store",
    "runs/taken": "runs/taken: No such file or directory; if it was deleted while the job ran",
    "prepared": "No such file or directory; if it was deleted while the job ran",
    "mlartifacts": "",  # it is made again
}
READ_ONLY = {
    "mlflow.db": "cannot use the MLflow store",
    "runs/taken": "Operation not permitted; check its permissions",
    "prepared": "",  # what is there is read
    "mlartifacts": "Operation not permitted; check its permissions",
}


@contextmanager
def _once(is_time: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Act in a thread, as soon as it is time."""

    def watch(ended: threading.Event) -> None:
        while not ended.wait(0.01):
            if is_time():
                act()
                return

    with beside(watch):
        yield


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


def _freeze(path: Path, how: str = "+i") -> None:
    """Let nobody write, not even root; or again, with ``-i``."""
    subprocess.run(["chattr", "-R", how, path], check=True)


@pytest.fixture(scope="module")
def unharmed(cluster: None, small_run: RunConfig) -> dict[str, Any]:
    return fit(overlay(small_run, {"name": "unharmed"})).metrics


def _run(
    take: Callable[[Path], None],
    taken: str,
    config: RunConfig,
    run_here: RunHere,
    job: ModuleType = train,
    *flags: object,
) -> tuple[int, str]:
    """Train, and take something away when there is a checkpoint."""
    output = Path(config.output)
    file = output / "config.json"
    write_config(config, file)

    def has_begun() -> bool:
        return any(output.glob("runs/taken*/checkpoint_*"))

    with _once(has_begun, lambda: take(output / taken)):
        code, said = run_here(job, "--config", file, *flags)
    assert "Traceback" not in said
    return code, said


@pytest.fixture
def config(cluster: None, small_run: RunConfig, empty_store: Path, tmp_path: Path) -> RunConfig:
    """A run in an output folder of its own."""
    shutil.copy(empty_store, tmp_path)
    return overlay(small_run, {"output": str(tmp_path), "name": "taken"})


def _goes_on(config: RunConfig, run_here: RunHere, unharmed: dict[str, Any]) -> None:
    code, said = run_here(train, "--config", Path(config.output) / "config.json")
    assert code == 0, said
    assert RunDirectory.of(config.output, "taken").notes["metrics"] == unharmed


@pytest.mark.parametrize("taken", DELETED)
def test_what_is_deleted_while_a_run_trains_is_told_in_one_line(taken, config, unharmed, run_here):
    code, said = _run(_delete, taken, config, run_here)
    if not DELETED[taken]:
        assert code == 0, said
        return
    assert code == 2, said
    assert DELETED[taken] in the_error(said)
    if taken != "mlflow.db":  # it has to be brought back
        _goes_on(config, run_here, unharmed)


@pytest.mark.parametrize("taken", READ_ONLY)
def test_what_is_read_only_while_a_run_trains_is_told_in_one_line(
    taken, config, unharmed, run_here
):
    path = Path(config.output) / taken
    probe = Path(config.output) / "probe"
    probe.touch()
    try:
        _freeze(probe)
        _freeze(probe, "-i")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can make a file that root cannot write, on ext4 and its like")
    try:
        code, said = _run(_freeze, taken, config, run_here)
    finally:
        _freeze(path, "-i")
    if not READ_ONLY[taken]:
        assert code == 0, said
        return
    assert code == 2, said
    assert READ_ONLY[taken] in the_error(said)
    notes = RunDirectory.of(config.output, "taken").notes
    client = MlflowClient(f"sqlite:///{config.output}/mlflow.db")
    assert client.get_run(notes["mlflow_run_id"]).outputs.model_outputs == []
    _goes_on(config, run_here, unharmed)


@pytest.mark.parametrize(
    ("taken", "expected", "said"),
    [
        ("sweeps/taken", 2, "error: [^\n]*sweeps/taken/.*No such file or directory; if it was del"),
        ("runs", 0, "; failed: .*No such file or directory"),  # the trial's; the others go on
    ],
)
def test_a_sweep_whose_folder_is_deleted_is_told_in_one_line(
    taken, expected, said, config, run_here
):
    sweep = ("--space", "optimizer", "--search", "random", "--num-samples", 2, "--no-stop-early")
    code, printed = _run(_delete, taken, config, run_here, tune, *sweep, "--at-once", 1)
    assert (code, len(re.findall(said, printed))) == (expected, 1), printed
    code, printed = run_here(tune, "--config", Path(config.output) / "config.json", *sweep)
    assert code == 0, printed
