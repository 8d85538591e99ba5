"""A run with copies on its machine's disk gives the same numbers, and leaves what others use."""

from pathlib import Path

import pytest
from support import WAITS_FOR_TASKS

from ramen_ray.config import overlay
from ramen_ray.data.store.made_folder import find_damage
from ramen_ray.orchestration.run.fit import fit

pytestmark = pytest.mark.slow


def test_steps_read_the_machines_own_copies_to_the_same_numbers(cluster, small_run, tmp_path):
    changes = {"walk.enabled": True, "training.epochs": 5, "workers.num_workers": 2}
    config = overlay(small_run, {**changes, **WAITS_FOR_TASKS})
    plain = fit(overlay(config, {"name": "plain"}))
    disk = tmp_path / "disk"
    copied = fit(overlay(config, {"name": "local", "local_folder": str(disk)}))
    assert copied.metrics == plain.metrics
    mirrored = Path(f"{disk}{config.output}")
    (prepared,) = (mirrored / "prepared").glob("[!.]*")
    assert find_damage(prepared) is None, "kept for other runs"
    assert list((mirrored / "walked").rglob("*.npy"))
    assert not list((mirrored / "runs").iterdir()), "the run's own are removed"
