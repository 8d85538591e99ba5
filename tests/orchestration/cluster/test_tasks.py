"""Functions that run as tasks: their results, errors and deaths, and how Ray's are told."""

import os
import signal
from functools import partial

import numpy as np
import pytest
import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OwnerDiedError,
)

from ramen_ray.orchestration.cluster.joining import ClusterError, quiet_ray_data
from ramen_ray.orchestration.cluster.resources import (
    MAX_ATTEMPTS,
    in_tasks,
    limited_attempts,
    user_errors,
)


def test_results_come_in_the_order_of_the_tasks(cluster):
    assert in_tasks([partial(pow, 2, n) for n in range(12)]) == [2**n for n in range(12)]


def test_work_that_ends_its_process_is_given_up(cluster, tmp_path):
    def deadly(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with limited_attempts(tmp_path / "attempts", "clicks.csv"):
            with (tmp_path / "begun").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    quiet_ray_data()
    rows = ray.data.range(1).map_batches(deadly)
    with pytest.raises(ClusterError, match=r"clicks\.csv: 4 processes have died"), user_errors():
        rows.materialize()
    assert (tmp_path / "begun").read_text() == "x" * MAX_ATTEMPTS


def test_work_that_ends_or_fails_leaves_no_mark(tmp_path):
    for _ in range(2 * MAX_ATTEMPTS):
        with pytest.raises(ValueError, match="bad"), limited_attempts(tmp_path, "clicks.csv"):
            raise ValueError("bad")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        NodeDiedError("Task failed because the node it was running on is dead.\nAnd more."),
        LocalRayletDiedError(),
        ObjectLostError("00ff", None, "here"),
        OwnerDiedError("00ff", None, "here"),
    ],
)
def test_a_lost_machine_is_told_with_what_to_do(error):
    said = r"^a machine of the cluster was lost, .*; run the same command again \(.*\)$"
    with pytest.raises(ClusterError, match=said) as raised, user_errors():
        raise error
    assert str(error).splitlines()[0] in str(raised.value)
