"""Runs whose store, folder or data are deleted while they train."""

import shutil
from pathlib import Path

import pytest
from support import the_error

from jobs import train
from ramen_ray.config import overlay, write_config
from ramen_ray.long_work import in_background
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.fit import fit

pytestmark = pytest.mark.slow

DELETED = ("mlflow.db", "runs/taken", "prepared")


@pytest.fixture(scope="module")
def unharmed(cluster, small_run):
    return fit(overlay(small_run, {"name": "unharmed"})).metrics


def _run(taken, config, run_here):
    """Train, and delete something when there is a checkpoint."""
    output = Path(config.output)
    write_config(config, output / "config.json")

    def delete_soon(ended):
        while not any(output.glob("runs/taken*/checkpoint_*")):
            if ended.wait(0.01):
                return
        if (path := output / taken).is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()

    with in_background(delete_soon):
        code, said = run_here(train, "--config", output / "config.json")
    assert "Traceback" not in said
    return code, said


@pytest.fixture
def config(cluster, small_run, empty_store, tmp_path):
    """A run in an output folder of its own."""
    shutil.copy(empty_store, tmp_path)
    return overlay(small_run, {"output": str(tmp_path), "name": "taken"})


@pytest.mark.parametrize("taken", DELETED)
def test_what_is_deleted_while_a_run_trains_is_told_in_one_line(
    taken, config, unharmed, run_here, done
):
    code, said = _run(taken, config, run_here)
    assert code == 2, said
    assert taken in the_error(said)
    if taken != "mlflow.db":  # it has to be brought back
        done(train, "--config", Path(config.output) / "config.json")
        assert RunDirectory.of(config.output, "taken").notes["metrics"] == unharmed
