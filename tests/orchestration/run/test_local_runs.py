"""A run with copies on its machine's disk reads nothing else in its steps, to the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import psutil
import pytest
from support import WAITS_FOR_TASKS, kill_train_worker, meanwhile, wait_until

from ramen_ray.config import overlay
from ramen_ray.data.store.made_folder import find_damage
from ramen_ray.long_work import in_background
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.fit import fit

pytestmark = pytest.mark.slow

EPOCH = 7  # steps of an epoch of the made dataset


@contextmanager
def _watched_workers() -> Iterator[set[str]]:
    """Yield a set that gets all arrays that workers map until the ``with`` block ends."""
    mapped: set[str] = set()

    def watch(ended: Event) -> None:
        while not ended.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if "RayTrainWorker" in " ".join(process.cmdline()):
                        maps = process.memory_maps()
                        mapped.update(one.path for one in maps if ".npy" in one.path)

    with in_background(watch):
        yield mapped


def _kill_one(run: Path) -> None:
    """Kill a worker once graphs and shortlists are in use, which it then has to take again."""
    wait_until((run / f"checkpoint_{3 * EPOCH:09d}").exists, "no checkpoint")
    wait_until(kill_train_worker, "no worker")


def test_steps_read_the_machines_own_copies_to_the_same_numbers(cluster, small_run, tmp_path):
    changes = {"walk.enabled": True, "training.epochs": 5, "workers.num_workers": 2}
    config = overlay(small_run, {**changes, **WAITS_FOR_TASKS})
    output, disk = Path(config.output), tmp_path / "disk"
    with _watched_workers() as mapped:
        plain = fit(overlay(config, {"name": "plain"}))
    assert {path for path in mapped if path.startswith(f"{output}/walked")}, "workers are watched"

    local = overlay(config, {"name": "local", "local_folder": str(disk)})
    run = RunDirectory.of(local.output, "local").path
    with _watched_workers() as mapped:
        copied = meanwhile(lambda: _kill_one(run), lambda: fit(local))
    assert copied.metrics == plain.metrics
    mirrored = f"{disk}{output}"
    assert {path for path in mapped if not path.startswith(f"{mirrored}/")} == set()
    for part in ("prepared", "walked", "runs/local/graphs/step_", "runs/local/shortlists/step_"):
        assert {path for path in mapped if path.startswith(f"{mirrored}/{part}")}, part
    (prepared,) = Path(mirrored, "prepared").glob("[!.]*")
    assert find_damage(prepared) is None, "kept for other runs"
    assert not list(Path(mirrored, "runs").iterdir()), "the run's own are removed"
