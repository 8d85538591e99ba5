"""A whole run on a GPU, and background tasks on the quarter that it leaves."""

import numpy as np
import pytest
import ray
import torch
from ray.util.placement_group import placement_group, remove_placement_group
from support import WAITS_FOR_TASKS

from ramen_ray.config import overlay
from ramen_ray.data.arrays import map_array
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.orchestration.background.from_checkpoints import SHORTLISTS_FILE
from ramen_ray.orchestration.background.task import BackgroundTask, Schedule, read_report
from ramen_ray.orchestration.run.fit import fit

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SHARE = 0.75


def test_a_run_trains_mines_and_prunes_on_one_gpu(cluster, small_run):
    changes = {
        "encoder.kind": "transformer",
        "training.epochs": 2,  # each task on a GPU starts a process
        **WAITS_FOR_TASKS,
        "workers.use_gpu": True,
        "workers.gpus_per_worker": SHARE,
    }
    result = fit(overlay(small_run, changes))
    assert all(np.isfinite(list(result.metrics["trained"]["test"].values())))
    (shortlists,) = result.run_directory.glob(f"shortlists/step_*/{SHORTLISTS_FILE}")
    assert (map_array(shortlists) >= 0).any()
    assert list(result.run_directory.glob("*/step_*/links"))  # of the pruned graph


def test_a_background_task_computes_on_the_quarter_that_is_left(cluster, tmp_path):
    (tmp_path / "encoder").mkdir()

    class Where:  # travels as a whole
        def __call__(self, model, folder):
            import ray

            ones = torch.ones(3, device="cuda").sum().item()
            return {"gpus": len(ray.get_gpu_ids()), "ones": ones}

        def take(self, result, sources):
            return sources

    schedule = Schedule(first=1, every=1, num_epochs=9, steps_per_epoch=1, wait=True)
    task = BackgroundTask("where", tmp_path / "results", Where(), schedule)
    training = placement_group([{"GPU": SHARE}])
    ray.get(training.ready())
    try:
        task.advance(1, tmp_path, SamplingSources({}))
    finally:
        remove_placement_group(training)
    report = read_report(task.result(1))
    assert (report["gpus"], report["ones"]) == (1, 3)
