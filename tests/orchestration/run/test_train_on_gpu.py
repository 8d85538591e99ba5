"""A whole run on a GPU, whose background tasks have the quarter that it leaves."""

import numpy as np
import pytest
from support import WAITS_FOR_TASKS

from ramen_ray.config import overlay
from ramen_ray.data.arrays import map_array
from ramen_ray.orchestration.background.from_checkpoints import SHORTLISTS_FILE
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
