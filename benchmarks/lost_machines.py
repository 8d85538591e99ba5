"""How long a training stands still when its machines are lost, frozen, taken away or join.

Two workers train the preset tiny on raylets, each with an address of its own. A checkpoint is
written every epoch. Each way is a run of its own, which must end by itself:

    replaced   a machine is killed, and another comes at once
    fewer      a machine is killed, one worker goes on; later another machine comes
    notice     a machine is taken away 30 seconds after a notice, one worker goes on
    frozen     no process of a machine answers, one worker goes on

A pause is the time from the last new step to the next: noticing, starting workers and doing steps
again. `ratio` is the longest pause over a minute.

    python -m benchmarks.lost_machines [--ways replaced fewer notice frozen] [--epochs 60]
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from benchmarks.common import ENVIRONMENT, ROOT, finish, options
from ramen_ray.orchestration.run.progress import read_progress

BEGUN = 60  # steps, before a machine is lost
GOES_ON = 100  # steps, before another one comes
NOTICE_S = 30
NAME = "lost"


class Training:
    """A training on several machines, and its longest pause since that was last asked for."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        head = {"num_cpus": 0, "node_ip_address": "127.0.0.2"}  # Ray replaces 127.0.0.1
        self._folder = folder / "runs" / NAME
        self._addresses = (f"127.0.0.{last}" for last in count(3))
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.machines = [self.add(), self.add()]
        command = [sys.executable, "jobs/train.py", "tiny", "--output", str(folder), "--name", NAME]
        environment = {**os.environ, "RAY_ADDRESS": self.cluster.address}
        self.job = subprocess.Popen([*command, *flags], cwd=ROOT, env=environment)
        self.step = 0
        self._pause = 0.0
        self._new_at = time.monotonic()

    def add(self) -> Any:
        """Add a machine with a CPU; the main thread has to, as Ray sets handlers of signals."""
        return self.cluster.add_node(num_cpus=1, node_ip_address=next(self._addresses))

    def wait(self, until: Callable[[], bool]) -> None:
        """Look how far the training is until something is true, or the job has ended."""
        while self.job.poll() is None and not until():
            now = time.monotonic()
            progress = read_progress(self._folder)
            if progress is not None and progress.step > self.step:
                self._pause = max(self._pause, now - self._new_at)
                self.step = progress.step
                self._new_at = now
            time.sleep(0.1)

    def wait_for_steps(self, steps: int) -> None:
        goal = self.step + steps
        self.wait(lambda: self.step >= goal)

    def pause(self) -> float:
        """Return the longest pause since the last call."""
        longest = self._pause
        self._pause = 0.0
        return longest


def main() -> None:
    asked = options(__doc__, ways=["replaced", "fewer", "notice", "frozen"], epochs=60)
    os.environ.update({**ENVIRONMENT, "OMP_NUM_THREADS": "1"})
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "1"
    figures = {way: pauses(way, asked.epochs) for way in asked.ways}
    longest_s = max(max(seconds.values()) for seconds in figures.values())
    finish(longest_s / 60, figures)


def pauses(way: str, epochs: int) -> dict[str, float]:
    """Disturb a training in one way; returns the seconds of its pauses, and of it all."""
    flags = ["--workers.num-workers", "2", "--workers.cpus-per-worker", "1"]
    flags += ["--pruning.mode", "never", "--training.epochs", str(epochs)]
    flags += [] if way == "replaced" else ["--workers.min-workers", "1"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        training = Training(Path(folder), flags)
        try:
            training.wait_for_steps(BEGUN)
            training.pause()
            seconds = DISTURBANCES[way](training)
            training.wait(lambda: False)
            if training.job.returncode:
                sys.exit(f"{way}: the training ended with code {training.job.returncode}")
        finally:
            training.job.kill()
            training.job.wait()
            training.cluster.shutdown()
    print(f"{way}: {seconds}", flush=True)
    return seconds


def replaced(training: Training) -> dict[str, float]:
    kill(training)
    training.add()
    training.wait_for_steps(GOES_ON)
    return {"lost_s": training.pause()}


def fewer(training: Training) -> dict[str, float]:
    kill(training)
    training.wait_for_steps(GOES_ON)
    lost_s = training.pause()
    training.add()
    training.wait(lambda: False)
    return {"lost_s": lost_s, "joined_s": training.pause()}


def notice(training: Training) -> dict[str, float]:
    command = [str(Path(sys.executable).with_name("ray")), "drain-node"]
    command += ["--node-id", training.machines[0].node_id, "--address", training.cluster.address]
    command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a spot machine"]
    command += ["--deadline-remaining-seconds", str(NOTICE_S)]
    subprocess.run(command, check=True, capture_output=True)
    gone_at = time.monotonic() + NOTICE_S
    training.wait(lambda: time.monotonic() > gone_at)
    kill(training)
    training.wait_for_steps(GOES_ON)
    return {"lost_s": training.pause()}


def frozen(training: Training) -> dict[str, float]:
    raylet = training.machines[0].all_processes["raylet"][0].process
    stopped = [psutil.Process(raylet.pid), *psutil.Process(raylet.pid).children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    training.wait_for_steps(GOES_ON)
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return {"lost_s": training.pause()}


def kill(training: Training) -> None:
    training.cluster.remove_node(training.machines[0], allow_graceful=False)


DISTURBANCES = {"replaced": replaced, "fewer": fewer, "notice": notice, "frozen": frozen}

if __name__ == "__main__":
    main()
