"""Functions that run as tasks: their results, errors and deaths, and how Ray's are told."""

import multiprocessing
import os
import signal
from functools import partial

import pytest
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OwnerDiedError,
)

from ramen_ray.orchestration.cluster.joining import ClusterError
from ramen_ray.orchestration.cluster.resources import (
    MAX_ATTEMPTS,
    in_tasks,
    limited_attempts,
    user_errors,
)


def test_results_come_in_the_order_of_the_tasks(cluster):
    assert in_tasks([partial(pow, 2, n) for n in range(12)]) == [2**n for n in range(12)]


def test_work_that_ends_its_process_is_given_up(tmp_path):
    def deadly():
        with limited_attempts(tmp_path, "clicks.csv"):
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(MAX_ATTEMPTS):
        process = multiprocessing.get_context("fork").Process(target=deadly)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    with (
        pytest.raises(ClusterError, match=r"clicks\.csv"),
        limited_attempts(tmp_path, "clicks.csv"),
    ):
        pytest.fail("it is begun once more")


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
    with pytest.raises(ClusterError) as raised, user_errors():
        raise error
    assert str(error).splitlines()[0] in str(raised.value)
