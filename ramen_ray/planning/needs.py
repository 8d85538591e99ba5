"""What one stage needs, and how long a cluster takes for it."""

from dataclasses import dataclass

from ramen_ray.planning.machines import Cluster


@dataclass(frozen=True)
class Need:
    """What a stage needs, all its repetitions together.

    Attributes:
        stage: its name.
        cpu_s: processor seconds at speed 1 that all cores of the cluster share.
        longest_s: those of the longest task, which runs beside the others and the GPUs.
        serial_s: processor seconds at speed 1 of one process, for which the others wait.
        gpu_s: seconds of a GPU, shared by all GPUs.
        serial_gpu_s: seconds of one GPU, for which the others wait.
        memory: bytes that a machine's processes allocate.
        mapped: bytes of arrays in files that a machine reads at random; where they do not fit into
            its memory, pages are read again and again.
        gpu_memory: bytes on each GPU.
        disk: bytes that the stage leaves on the disk or the shared folder.
        scratch: bytes that it writes besides, and deletes.
        spilled: those of them that Ray writes to the machines' own disks.
        network: bytes between the machines and the shared folder.
    """

    stage: str
    cpu_s: float = 0.0
    longest_s: float = 0.0
    serial_s: float = 0.0
    gpu_s: float = 0.0
    serial_gpu_s: float = 0.0
    memory: float = 0.0
    mapped: float = 0.0
    gpu_memory: float = 0.0
    disk: float = 0.0
    scratch: float = 0.0
    spilled: float = 0.0
    network: float = 0.0

    @property
    def processor_s(self) -> float:
        """All processor seconds, at speed 1."""
        return self.cpu_s + self.serial_s

    def machine_hours(self, cluster: Cluster) -> float:
        """Hours of work of one machine; a serial part takes one machine."""
        machine = cluster.machine
        seconds = self.cpu_s / (machine.cores * machine.speed) + self.serial_s / machine.speed
        return (seconds + self.gpu_s / max(machine.gpus, 1) + self.serial_gpu_s) / 3600

    def compute_hours(self, cluster: Cluster) -> float:
        """Hours that the cluster computes."""
        speed = cluster.machine.speed
        shared = self.cpu_s / cluster.cores + self.gpu_s / max(cluster.gpus, 1)
        beside = max(shared, self.longest_s / speed)
        return (beside + self.serial_gpu_s + self.serial_s / speed) / 3600

    def serial_hours(self, cluster: Cluster) -> float:
        """Hours for which one process or GPU works, whether or not the others wait for it."""
        seconds = (self.longest_s + self.serial_s) / cluster.machine.speed
        return (seconds + self.serial_gpu_s) / 3600

    def network_hours(self, cluster: Cluster) -> float:
        """Hours for which the machines' networks are busy, at their full rate."""
        rate = cluster.machine.network * cluster.count
        return self.network / rate / 3600 if rate else 0.0

    def hours(self, cluster: Cluster) -> float:
        """Hours that pass: computing and the network overlap."""
        return max(self.compute_hours(cluster), self.network_hours(cluster))
