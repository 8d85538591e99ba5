"""Several machines in one: what Ray takes for a cluster whose machines can be lost."""

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from support import wait_until


class Machines:
    """A cluster with a head that offers no CPUs, which this process joins, and other machines.

    Each has an address of its own on loopback, so that Ray takes them for different machines. They
    share this one's disk, as real ones would share a folder. Use it in the main thread only: Ray
    sets handlers of signals when it starts a machine.
    """

    def __init__(self) -> None:
        head = {"num_cpus": 0, "node_ip_address": "127.0.0.2"}  # Ray replaces 127.0.0.1
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._addresses = (f"127.0.0.{last}" for last in count(3))
        self._running: list[tuple[int, Any]] = []
        ray.init(address=self._cluster.address, log_to_driver=False)

    def add(self, num_cpus: int = 1) -> str:
        """Add a machine; returns its id."""
        address = next(self._addresses)
        node = self._cluster.add_node(num_cpus=num_cpus, node_ip_address=address, wait=False)
        self._running.append((num_cpus, node))
        wait_until(lambda: node.node_id in alive(), "the machine does not start")
        return str(node.node_id)

    def lose(self, node_id: str | None = None) -> None:
        """Kill all processes of a machine, by default the one added first; nobody is told."""
        ids = [node.node_id for _, node in self._running]
        _, node = self._running.pop(0 if node_id is None else ids.index(node_id))
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, node_id: str, within_s: int) -> None:
        """Give notice, as clouds do for spot machines, that a machine will be taken away."""
        command = [str(Path(sys.executable).with_name("ray")), "drain-node", "--node-id", node_id]
        command += ["--address", self._cluster.address, "--reason-message", "a spot machine"]
        command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        command += ["--deadline-remaining-seconds", str(within_s)]
        subprocess.run(command, check=True, capture_output=True)

    def become(self, *num_cpus: int) -> None:
        """Lose and add machines, until those with these numbers of CPUs are left."""
        while [cpus for cpus, _ in self._running] != list(num_cpus[: len(self._running)]):
            self.lose()
        for cpus in num_cpus[len(self._running) :]:
            self.add(cpus)
        wait_until(lambda: len(alive()) == 1 + len(num_cpus), "lost machines are not noticed")

    def shut_down(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


def alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
