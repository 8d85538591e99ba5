"""Machines: vendors' sheets, and the one that this program runs on."""

import os
import shutil
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.errors import UserError

SHEETS = Path(__file__).with_name("machines.toml")
THIS = "this"
GIB = 2**30


class PlanError(UserError):
    """A size or a machine that is asked for cannot be used; the message says why."""


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster; all of them are alike.

    Attributes:
        name: of the vendor.
        cores: processor cores.
        speed: of a core; 1 is the core that the unit costs were measured on.
        memory: bytes.
        gpus: number of GPUs.
        gpu_memory: bytes of a GPU.
        gpu_bf16: operations per second of a GPU's bf16 matrix products.
        gpu_fp32: the same in fp32.
        disk: bytes of its own disks.
        network: bytes per second, each way.
        source: where these figures come from.
    """

    name: str
    cores: int
    memory: float
    gpus: int = 0
    gpu_memory: float = 0
    gpu_bf16: float = 0
    gpu_fp32: float = 0
    disk: float = 0
    network: float = 0
    speed: float = 1.0
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """Several machines of one kind."""

    machine: Machine
    count: int

    @property
    def gpus(self) -> int:
        """GPUs of all machines."""
        return self.machine.gpus * self.count

    @property
    def cores(self) -> float:
        """Cores of all machines, as many as would be as fast at speed 1."""
        return self.machine.cores * self.machine.speed * self.count

    def over_network(self, written_and_read: float) -> float:
        """Return the bytes that cross the network: none if one machine has everything."""
        return written_and_read if self.count > 1 else 0.0


def parse_cluster(text: str, reference_s: float) -> Cluster:
    """Read ``NAME=COUNT``; NAME alone is one machine, and ``this`` is the present one.

    Args:
        text: for instance ``g5.2xlarge=8``.
        reference_s: what :func:`measure_reference` took where the unit costs were measured.

    Raises:
        PlanError: there is no such machine, or the count is not a positive number.
    """
    name, given, count = text.partition("=")
    if given and not (count.isdecimal() and int(count)):
        raise PlanError(f"machine {text!r}: {count!r} is not a number of machines; say {name}=8")
    machine = this_machine(reference_s) if name == THIS else _from_sheet(name)
    return Cluster(machine, int(count or 1))


def machine_names() -> list[str]:
    """Return the names of the machines with a sheet."""
    return list(_sheets())


def this_machine(reference_s: float) -> Machine:
    """Describe the machine that this program runs on, without its GPUs: these have no sheet."""
    return Machine(
        name=THIS,
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        disk=shutil.disk_usage(Path.cwd()).free,
        speed=reference_s / measure_reference(),
        source="measured now",
    )


def measure_reference() -> float:
    """Return the processor seconds of a fixed piece of work: merging, and random reads of memory.

    Its ratio to what it took where the unit costs were measured is the speed of a core. NumPy's
    default sort would not do: it is three times faster on some processors, and other work is not.
    """
    draw = np.random.default_rng(0)
    values = draw.integers(0, 2**63, 1 << 21)
    memory = np.arange(1 << 24, dtype=np.int32)
    places = values % len(memory)
    seconds = []
    for _ in range(3):
        started = time.thread_time()
        np.sort(values, kind="stable")
        memory.take(places)
        seconds.append(time.thread_time() - started)
    return float(np.median(seconds))


def _from_sheet(name: str) -> Machine:
    sheet: dict[str, Any] | None = _sheets().get(name)
    if sheet is None:
        known = ", ".join([*machine_names(), THIS])
        raise PlanError(f"there is no sheet of a machine {name!r}; known are {known}")
    return Machine(
        name=name,
        cores=sheet["cores"],
        memory=sheet["memory_gib"] * GIB,
        gpus=sheet["gpus"],
        gpu_memory=sheet["gpu_memory_gib"] * GIB,
        gpu_bf16=sheet["gpu_bf16_tflops"] * 1e12,
        gpu_fp32=sheet["gpu_fp32_tflops"] * 1e12,
        disk=sheet["disk_gb"] * 1e9,
        network=sheet["network_gbit"] * 1e9 / 8,
        source=sheet["source"],
    )


def _sheets() -> dict[str, dict[str, Any]]:
    return tomllib.loads(SHEETS.read_text(encoding="utf-8"))
