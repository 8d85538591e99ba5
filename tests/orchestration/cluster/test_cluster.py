"""What is requested of a cluster, and given back."""

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from support import wait_until

from jobs import train
from ramen_ray.config import WorkersConfig
from ramen_ray.orchestration.cluster.joining import ClusterError
from ramen_ray.orchestration.cluster.resources import (
    check_resources,
    free_share,
    no_placement_group_left,
)

WORKER = WorkersConfig(use_gpu=True, gpus_per_worker=0.6, cpus_per_worker=1, startup_timeout_s=0.5)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """In place of the shared one, with two GPUs."""
    ray.shutdown()  # what another module left
    ray.init(address="local", num_cpus=2, num_gpus=2, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _all_is_given_back():
    yield
    wait_until(lambda: free() == (2, 2), "what was held is not given back")


def free():
    resources = ray.available_resources()
    return resources.get("CPU", 0), resources.get("GPU", 0)


def test_too_few_cpus_are_reported_before_anything_is_prepared(refused, output):
    workers = ("--workers.num-workers", "64", "--workers.startup-timeout-s", "1")
    assert "workers.num_workers 64" in refused(train, "tiny", "--output", output, *workers)
    assert not (output / "prepared").exists()


def test_a_share_of_a_gpu_is_of_one_gpu():
    group = placement_group([{"GPU": 0.6}] * 2)
    ray.get(group.ready())
    with pytest.raises(ClusterError, match=r"workers\.gpus_per_worker 0\.6"):
        check_resources(WORKER)
    remove_placement_group(group)
    wait_until(lambda: free() == (2, 2), "the group is not given back")
    check_resources(WORKER)


@pytest.mark.parametrize(
    ("held", "share"),
    [
        ([{"GPU": 0.7}] * 2, {"num_cpus": 0, "num_gpus": 0.25}),
        ([{"GPU": 0.8}] * 2, {"num_cpus": 1, "num_gpus": 0}),  # no single GPU has 0.25
        ([{"GPU": 1}] * 2 + [{"CPU": 1}] * 2, {"num_cpus": 0, "num_gpus": 0}),
    ],
)
def test_background_tasks_take_what_is_free_in_one_place(held, share):
    with no_placement_group_left():
        assert placement_group(held).wait()
        left = {name: 2 - sum(one.get(name, 0) for one in held) for name in ("CPU", "GPU")}
        wait_until(lambda: free() == pytest.approx(tuple(left.values())), "the group is not made")
        assert free_share() == share
