"""A cluster without machines that adds them when a job asks for some (Ray's fake provider)."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Head, free_port, running_head
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FakeMultiNodeProvider,
)
from ray.util.state import list_nodes
from support import PATIENCE_S, begin_training, wait_until

from ramen_ray.config import overlay
from ramen_ray.orchestration.run.directory import RunDirectory

pytestmark = pytest.mark.slow

MOST_MACHINES = 2
IDLE_MINUTES = 0.5
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # which Linux obeys, too
NO_COMMANDS = ("setup_commands", "head_setup_commands", "worker_setup_commands")


@pytest.fixture
def autoscaled(tmp_path: Path) -> Iterator[Head]:
    """A head without CPUs, which may start two machines of one CPU, with a cluster file as ours."""
    port = free_port()
    settings = {
        "cluster_name": "fake",
        "max_workers": MOST_MACHINES,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": {
            "type": "external",  # as Ray 2.60 lacks the defaults of its type fake_multinode
            "module": f"{FakeMultiNodeProvider.__module__}.{FakeMultiNodeProvider.__name__}",
            "gcs_address": f"127.0.0.1:{port}",
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {
                "resources": {"CPU": 1, "object_store_memory": 100 << 20},
                "node_config": {},
                "min_workers": 0,
                "max_workers": MOST_MACHINES,
            },
        },
        "head_node_type": "ray.head.default",
        "cluster_synced_files": [],
        **{name: [] for name in NO_COMMANDS},
    }
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(settings))
    environment = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",  # as `ray up` has it
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        **ON_LOOPBACK,
    }
    flags = ["--num-cpus=0", f"--autoscaling-config={file}"]
    with running_head(port, *flags, **environment) as head:
        wait_until(lambda: _machines(head) == 0, "the head does not start")
        yield head


def _machines(head: Head) -> int | None:
    """Count the machines beside the head; None if the head does not answer yet."""
    try:
        nodes = list_nodes(address=head.dashboard)
    except Exception:  # of several kinds, while it starts
        return None
    return sum(node.state == "ALIVE" and not node.is_head_node for node in nodes)


def test_a_job_waits_for_machines_gets_them_and_they_leave(autoscaled, small_run, tmp_path):
    workers = {"workers.num_workers": MOST_MACHINES, "workers.startup_timeout_s": PATIENCE_S}
    config = overlay(small_run, {"name": "autoscaled", **workers})
    environment = {**os.environ, **ON_LOOPBACK, "RAY_ADDRESS": autoscaled.address}
    with (log := tmp_path / "log").open("wb") as output:
        job = begin_training(config, tmp_path, env=environment, stdout=output, stderr=output)
    most = 0
    while job.poll() is None:
        most = max(most, _machines(autoscaled) or 0)
        time.sleep(0.5)
    assert job.returncode == 0, log.read_text()
    assert RunDirectory.of(config.output, "autoscaled").notes["finished"]
    assert most == MOST_MACHINES
    wait_until(lambda: _machines(autoscaled) == 0, "idle machines stay")
