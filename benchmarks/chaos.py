"""Whether anything is lost when processes are killed: trains, sweeps and predicts in a loop.

First each job runs undisturbed. Then they run in turns, while a seeded schedule kills (SIGKILL)
workers, tasks and actors, raylets, and the job itself. A job that ends with an error is started
again by the same command. Its numbers must be those of the undisturbed job; afterwards no process
and no folder in /dev/shm may be left. `ratio` is the share of runs with the same numbers.

    python -m benchmarks.chaos [--minutes 30] [--seed 0]
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import ENVIRONMENT, ROOT, finish, options, write_queries
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.registry import Registry, uri_of

FAULTS = ("worker", "task", "raylet", "driver")
FAULTS_PER_RUN, MAX_STARTS = 3, 12
PAUSE_S = (4.0, 20.0)  # between two faults
END_S = 60.0  # for Ray's processes, after their job
TAG = "RAMEN_RAY_CHAOS"
SHARED_MEMORY = Path("/dev/shm")
NUM_QUERIES, ROW_GROUP = 40_000, 2_000
UNDISTURBED = "undisturbed"
TINY = [
    *("tiny", "--base.kind", "ance", "--pruning.mode", "synchronous"),
    *("--training.checkpoint-every-steps", "10", "--workers.cpus-per-worker", "1"),
]


def main() -> None:
    asked = options(__doc__, minutes=30.0, seed=0)
    shared_before = set(SHARED_MEMORY.iterdir())
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        soak = Soak(Path(folder), random.Random(asked.seed))
        for name in soak.jobs:
            soak.learn(name)
        deadline = time.monotonic() + 60 * asked.minutes
        outcomes: list[bool] = []
        while time.monotonic() < deadline:
            outcomes.append(soak.run(soak.draw.choice(sorted(soak.jobs)), len(outcomes)))
    figures = {
        "faults": dict(soak.faults),
        "runs": len(outcomes),
        "processes_left": soak.leaked,
        "shared_memory_left": sorted(map(str, set(SHARED_MEMORY.iterdir()) - shared_before)),
    }
    finish(sum(outcomes) / max(len(outcomes), 1), figures)


class Soak:
    """The jobs, the numbers of each undisturbed, the faults so far, and what they left."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw, self.output = folder, draw, folder / "outputs"
        self.expected: dict[str, Any] = {}
        self.faults: Counter[str] = Counter()
        self.starts, self.leaked = 0, list[str]()
        to_output = ["--output", str(self.output)]
        trials = ["--space", "optimizer", "--search", "random", "--num-samples", "2"]
        self.jobs = {
            "train": ["jobs/train.py", *TINY, *to_output, "--name"],
            "tune": ["jobs/tune.py", *TINY, *to_output, *trials, "--no-stop-early", "--name"],
            "predict": ["jobs/predict.py", *to_output, "--queries", str(folder / "queries")],
        }

    def learn(self, name: str) -> None:
        """Run a job undisturbed, and note its numbers."""
        if name == "predict":
            known = Dataset(ROOT / "datasets" / "foldoc").read("queries/train")["text"].to_pylist()
            write_queries(self.folder / "queries", known, NUM_QUERIES, ROW_GROUP)
            notes = json.loads((self.output / "runs" / UNDISTURBED / "run.json").read_text())
            found = Registry(tracking_uri(self.output)).find_logged(notes["mlflow_run_id"], None)
            self.jobs["predict"] += ["--model", uri_of(found[1]), "--answers"]
        code, said = self._start(name, UNDISTURBED, disturb=False)
        if code:
            raise RuntimeError(f"{name} fails undisturbed, with code {code}:\n{said}")
        self.expected[name] = self._numbers(name, UNDISTURBED)

    def run(self, name: str, number: int) -> bool:
        """Run a job until it succeeds, disturbed; says whether its numbers are the same."""
        own, before, code, said, starts = f"disturbed-{number}", self.faults.total(), 1, "", 0
        while code and starts < MAX_STARTS:
            disturb = self.faults.total() - before < FAULTS_PER_RUN
            code, said = self._start(name, own, disturb)
            starts += 1
        is_same = code == 0 and self._numbers(name, own) == self.expected[name]
        print(f"{name}: {starts} starts, {'the same numbers' if is_same else said}", flush=True)
        return is_same

    def _start(self, name: str, own: str, disturb: bool) -> tuple[int, str]:
        """Run a job once; returns its exit code and what it said."""
        self.starts += 1
        tag, log = f"{self.folder.name}-{self.starts}", self.folder / f"{name}-{own}.log"
        value = str(self.folder / own) if name == "predict" else own
        environment = {**os.environ, **ENVIRONMENT, TAG: tag, "RAY_TMPDIR": str(self.folder)}
        with log.open("ab") as opened:
            process = subprocess.Popen(
                [sys.executable, *self.jobs[name], value],
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdout=opened,
                stderr=opened,
            )
        try:
            if disturb:
                self._disturb(process, tag)
            code = process.wait()
        except BaseException:  # the benchmark itself is interrupted
            _kill(_tagged(tag))
            raise
        deadline = time.monotonic() + END_S
        while (left := _tagged(tag)) and time.monotonic() < deadline:
            time.sleep(0.5)
        self.leaked += [" ".join(one.cmdline())[:80] for one in left]
        _kill(left)
        return code, log.read_text(errors="replace")[-2000:]

    def _disturb(self, process: subprocess.Popen[bytes], tag: str) -> None:
        """Kill something now and then, until the job ends or has had its share."""
        for _ in range(FAULTS_PER_RUN):
            next_at = time.monotonic() + self.draw.uniform(*PAUSE_S)
            fault = self.draw.choice(FAULTS)
            while process.poll() is None and time.monotonic() < next_at:
                time.sleep(0.1)
            while process.poll() is None:
                if victims := [one for one in _tagged(tag) if _kind(one, process.pid) == fault]:
                    _kill([self.draw.choice(victims)])
                    self.faults[fault] += 1
                    print(f"  {fault} killed", flush=True)
                    break
                time.sleep(0.1)
                if time.monotonic() > next_at + PAUSE_S[1]:
                    fault = "driver"  # there is nothing of the other kind

    def _numbers(self, name: str, own: str) -> Any:
        """Read what a job has left: metrics, or the checksums of its answers."""
        if name == "predict":
            parts = sorted((self.folder / own).glob("part-*.parquet"))
            return [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts]
        runs = self.output.glob(f"runs/{own}{'-*' if name == 'tune' else ''}/run.json")
        return sorted(json.dumps(json.loads(run.read_text()).get("metrics")) for run in runs)


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


def _tagged(tag: str) -> list[psutil.Process]:
    """List the processes of a job, which inherit its environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


if __name__ == "__main__":
    main()
