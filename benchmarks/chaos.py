"""Whether anything is lost when processes are killed: trains, sweeps and predicts in a loop.

First each job runs undisturbed. Then they run in turns, while a seeded schedule kills (SIGKILL)
workers of Ray Train, tasks and actors, raylets, the job itself, and the tracking server, which is
back after ten seconds. A job that ends with an error is started again by the same command. Its
numbers must be those of the undisturbed job; afterwards no process, no folder in /dev/shm and no
file handle of this process may be left. `ratio` is the share of runs with the same numbers.

    python -m benchmarks.chaos [--minutes 30] [--seed 0]
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import ENVIRONMENT, ROOT, finish
from ramen_ray.data.store.dataset import Dataset

FAULTS = ("worker", "task", "raylet", "driver", "server")
FAULTS_PER_RUN = 3
PAUSE_S = (4.0, 20.0)  # between two faults
SERVER_AWAY_S = 10.0
MAX_STARTS = 12
END_S = 60.0  # for Ray's processes, after their job
TAG = "RAMEN_RAY_CHAOS"
SHARED_MEMORY = Path("/dev/shm")
NUM_QUERIES, ROW_GROUP = 40_000, 2_000
DATASET = "datasets/foldoc"

TINY = [
    *("tiny", "--base.kind", "ance", "--pruning.mode", "synchronous"),
    *("--training.checkpoint-every-steps", "10", "--workers.cpus-per-worker", "1"),
]


def main() -> None:
    """Run the jobs undisturbed, then disturbed until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shared_before = _shared_memory()
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        soak = Soak(Path(folder), random.Random(options.seed))
        with soak.server:
            soak.learn()
            handles_before = psutil.Process().num_fds()  # with a connection to the server
            deadline = time.monotonic() + 60 * options.minutes
            while time.monotonic() < deadline:
                soak.round()
    left = {
        "processes": soak.leaked,
        "shared_memory": sorted(_shared_memory() - shared_before),
        "file_handles": psutil.Process().num_fds() - handles_before,
    }
    num_faults = soak.faults.total()
    figures = {
        "faults": dict(soak.faults),
        "runs": soak.runs,
        "runs_with_the_same_numbers": soak.same,
        "starts": soak.starts,
        "seconds_lost_per_fault": soak.seconds_lost / max(num_faults, 1),
        "left": left,
        "differences": soak.differences,
    }
    finish(soak.same / max(soak.runs, 1), figures)


class Server:
    """An MLflow server with a store in a folder, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        """Choose a port; nothing is started."""
        self.folder = folder
        self.port = 20_000 + int.from_bytes(os.urandom(2)) % 12_000  # Ray uses those above
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> None:
        """Start it, and wait until it answers."""
        folder = self.folder
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port)]
        command += ["--host", "127.0.0.1", "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while not self._answers():
            time.sleep(0.5)

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        if self.process is not None:
            _kill(_family(self.process.pid))
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
        except OSError:
            return False
        return True


@dataclass
class Job:
    """A command, and how to read the numbers that it leaves.

    Attributes:
        command: its words, but for the name or folder of what it writes.
        own: the flag for that.
        numbers: reads the numbers of what it wrote under a name.
        expected: the numbers of the undisturbed run.
        seconds: how long that took.
    """

    command: list[str]
    own: str
    numbers: Callable[[str], Any]
    expected: Any = None
    seconds: float = 0.0


@dataclass
class Soak:
    """The jobs, the faults so far, and what came of them."""

    folder: Path
    draw: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    same: int = 0
    starts: int = 0
    seconds_lost: float = 0.0
    leaked: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the jobs that need no results of others."""
        self.output = self.folder / "outputs"
        self.server = Server(self.folder)
        to_output = ["--output", str(self.output)]
        train = ["jobs/train.py", *TINY, *to_output]
        tune = ["jobs/tune.py", *TINY, *to_output, "--space", "optimizer", "--search", "random"]
        tune += ["--num-samples", "2", "--no-stop-early", "--at-once", "1"]
        self.jobs["train"] = Job(train, "--name", self._trained)
        self.jobs["tune"] = Job(tune, "--name", self._swept)

    def learn(self) -> None:
        """Run each job undisturbed, and note its numbers and time."""
        self._learn("train")
        notes = json.loads((self.output / "runs" / "undisturbed" / "run.json").read_text())
        queries = self.folder / "queries.parquet"
        known = Dataset(ROOT / DATASET).read("queries/train")["text"].to_pylist()
        texts = [f"{known[row % len(known)]} {row // len(known)}" for row in range(NUM_QUERIES)]
        pq.write_table(pa.table({"text": texts}), queries, row_group_size=ROW_GROUP)
        model = _retriever_of(self.server.uri, notes["mlflow_run_id"])
        predict = ["jobs/predict.py", "--model", model, "--queries", str(queries)]
        self.jobs["predict"] = Job(predict, "--answers", self._answered)
        self._learn("predict")
        self._learn("tune")

    def _learn(self, name: str) -> None:
        job = self.jobs[name]
        started = time.monotonic()
        code, said = self._start(job, "undisturbed", disturb=False)
        if code:
            raise RuntimeError(f"{name} fails undisturbed, with code {code}:\n{said}")
        job.seconds = time.monotonic() - started
        job.expected = job.numbers("undisturbed")
        print(f"{name}: {job.seconds:.0f} s undisturbed", flush=True)

    def round(self) -> None:
        """Run a job until it succeeds, disturbed, and compare its numbers."""
        self.runs += 1
        name = self.draw.choice(sorted(self.jobs))
        job, own, before = self.jobs[name], f"disturbed-{self.runs}", self.faults.total()
        started, starts, said = time.monotonic(), 0, ""
        code: int | None = None
        while code != 0 and starts < MAX_STARTS:
            disturb = self.faults.total() - before < FAULTS_PER_RUN
            code, said = self._start(job, own, disturb)
            starts += 1
        seconds = time.monotonic() - started
        is_same = code == 0 and job.numbers(own) == job.expected
        self.starts += starts
        self.same += is_same
        self.seconds_lost += max(seconds - job.seconds, 0)
        if not is_same:
            self.differences.append(f"{name} {own}: code {code}; {said[-2000:]}")
        print(
            f"{name} {own}: {starts} starts, {self.faults.total() - before} faults, "
            f"{seconds:.0f} s, {'the same numbers' if is_same else 'OTHER NUMBERS'}",
            flush=True,
        )
        shutil.rmtree(self.output / "runs" / own, ignore_errors=True)

    def _start(self, job: Job, own: str, disturb: bool) -> tuple[int, str]:
        """Run a job once; returns its exit code and what it said."""
        log = self.folder / f"{own}.log"
        tag = f"{self.folder.name}-{self.starts}-{time.monotonic()}"
        value = str(self.folder / own) if job.own == "--answers" else own
        environment = {**os.environ, **ENVIRONMENT, TAG: tag, "PYTHONPATH": str(ROOT)}
        environment |= {"MLFLOW_TRACKING_URI": self.server.uri, "RAY_TMPDIR": str(self.folder)}
        with log.open("ab") as output:
            command = [sys.executable, *job.command, job.own, value]
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output
            )
        try:
            if disturb:
                self._disturb(process)
            code = process.wait()
        finally:  # also if the benchmark itself is interrupted
            _kill(_family(process.pid))
        self.leaked += _left_behind(tag)
        return code, log.read_text(errors="replace")

    def _disturb(self, process: subprocess.Popen[bytes]) -> None:
        """Kill something now and then, until the job ends or has had its share."""
        for _ in range(FAULTS_PER_RUN):
            next_at = time.monotonic() + self.draw.uniform(*PAUSE_S)
            fault = self.draw.choice(FAULTS)
            while process.poll() is None and time.monotonic() < next_at:
                time.sleep(0.1)
            while process.poll() is None and not self._inject(fault, process.pid):
                time.sleep(0.1)
                if time.monotonic() > next_at + PAUSE_S[1]:
                    fault = "driver"  # there is nothing of the other kind

    def _inject(self, fault: str, job: int) -> bool:
        """Kill a process of a kind; says whether there was one."""
        if fault == "server":
            self.server.__exit__()
            time.sleep(SERVER_AWAY_S)
            self.server.__enter__()
        else:
            victims = [one for one in _family(job) if _kind(one, job) == fault]
            if not victims:
                return False
            _kill([self.draw.choice(victims)])
        self.faults[fault] += 1
        print(f"  {fault} killed", flush=True)
        return True

    def _trained(self, name: str) -> Any:
        return json.loads((self.output / "runs" / name / "run.json").read_text())["metrics"]

    def _swept(self, name: str) -> Any:
        runs = sorted((self.output / "runs").glob(f"{name}-*/run.json"))
        return sorted(json.dumps(json.loads(run.read_text()).get("metrics")) for run in runs)

    def _answered(self, name: str) -> Any:
        parts = sorted((self.folder / name).glob("part-*.parquet"))
        return [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts]


def _retriever_of(uri: str, run_id: str) -> str:
    from ramen_ray.tracking.registry import Registry, uri_of

    return uri_of(Registry(uri).find_logged(run_id, None)[1])


def _family(root: int) -> list[psutil.Process]:
    """List a process and all below it."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kind(process: psutil.Process, job: int) -> str | None:
    """Say what to call a process of a job, if it is one to kill."""
    if process.pid == job:
        return "driver"
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return None
    if "RayTrainWorker" in words or "train_alone" in words:
        return "worker"
    if words.startswith("ray::") and "IDLE" not in words:
        return "task"
    return "raylet" if "raylet/raylet" in words.split(" ")[0] else None


def _kill(processes: list[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def _left_behind(tag: str) -> list[str]:
    """Wait for the processes of a job to end; returns and kills those that do not."""
    deadline = time.monotonic() + END_S
    while (left := list(_tagged(tag))) and time.monotonic() < deadline:
        time.sleep(0.5)
    names = [" ".join(one.cmdline())[:80] for one in left]
    _kill(left)
    return names


def _tagged(tag: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue


def _shared_memory() -> set[str]:
    return {entry.name for entry in SHARED_MEMORY.iterdir()}


if __name__ == "__main__":
    main()
