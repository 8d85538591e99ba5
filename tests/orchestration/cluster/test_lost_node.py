"""A machine of the cluster is lost while it trains, and another takes its place."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from support import wait_until

from ramen_ray.config import RunConfig, overlay
from ramen_ray.orchestration.training.run import fit


@pytest.mark.slow
def test_training_goes_on_after_a_lost_machine_to_the_same_numbers(small_run: RunConfig) -> None:
    ray.shutdown()  # what another module left
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    lost = machines.add_node(num_cpus=2)
    ray.init(address=machines.address, log_to_driver=False)
    two_cpus = overlay(small_run, {"workers.cpus_per_worker": 2})  # which the head does not have
    unharmed = fit(overlay(two_cpus, {"name": "unharmed"}))
    checkpoint = Path(small_run.output) / "runs" / "lost" / "checkpoint_000000007"

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(fit, overlay(two_cpus, {"name": "lost"}))
        wait_until(lambda: checkpoint.exists() or training.done(), "no checkpoint")
        machines.add_node(num_cpus=2)
        machines.remove_node(lost, allow_graceful=False)
        result = training.result()
    ray.shutdown()
    machines.shutdown()
    assert result.metrics == unharmed.metrics
