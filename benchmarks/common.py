"""What all benchmarks share: flags, rounds, prepared data, processes, the JSON line at the end."""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.long_work import in_background

if TYPE_CHECKING:  # gpu_step runs where pydantic is missing
    from ramen_ray.config import EncoderConfig

ROOT = Path(__file__).parent.parent
NUM_THREADS = 2
CACHE = Path(tempfile.gettempdir()) / "ramen_ray_benchmarks"
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "OMP_NUM_THREADS": str(NUM_THREADS),
    "RAY_ADDRESS": "local",
    "RAY_AUTH_MODE": "disabled",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}

T = TypeVar("T")

_LOAD_BEFORE = os.getloadavg()[0]


def options(doc: str, **defaults: Any) -> argparse.Namespace:
    """Parse a benchmark's flags: one for each default, of its type; a list takes several words.

    A folder ``--into`` which tables go must exist, so that hours of work are not lost at the end.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(flag, nargs="+", type=type(default[0]), default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    asked = parser.parse_args()
    into = getattr(asked, "into", "")
    if into and not Path(into).is_dir():
        parser.error(f"--into {into}: there is no such folder")
    return asked


def alternate(rounds: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Run the sides in turns, ``rounds`` times (A B A B ...); returns their results."""
    results: dict[str, list[T]] = {side: [] for side in sides}
    for number in range(1, rounds + 1):
        for side, run in sides.items():
            started = time.monotonic()
            results[side].append(run())
            seconds = time.monotonic() - started
            print(f"round {number}/{rounds} {side}: took {seconds:.1f} s", flush=True)
    return results


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(row[name] for row in rows) for name in rows[0]}


def finish(ratio: float, figures: Mapping[str, Any]) -> None:
    """Print the figures and, as the last line, everything as one JSON object."""
    for name, value in figures.items():
        print(f"{name}: {_rounded(value)}")
    print(f"ratio: {ratio:.3f}")
    content = {"ratio": ratio, **figures, "machine": machine()}
    print(json.dumps(_rounded(content)), flush=True)


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores, memory, load, and versions of main packages."""
    import torch

    info = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": psutil.virtual_memory().total / 1e9,
        "load_before": _LOAD_BEFORE,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def in_fresh_process(function: Callable[..., T], *arguments: Any, method: str = "spawn") -> T:
    """Call ``function`` in a new interpreter, so that it shares neither memory nor imports.

    With the method "fork" it shares this process's imports, but none of its later memory.
    """
    os.environ.update(ENVIRONMENT)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        return pool.submit(function, *arguments).result()


def run_python(*words: object) -> str:
    """Run Python with the arguments, in the repository's root; returns what it printed.

    Raises:
        SystemExit: it failed; with the end of what it said of that.
    """
    environment = {**os.environ, **ENVIRONMENT}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def latencies(answer: Callable[[Any], Any], queries: Any) -> dict[str, float]:
    """Return quantiles of the milliseconds of a query, after ten that are not counted."""
    for query in queries[:10]:
        answer(query)
    return quantiles([1000 * seconds_of(partial(answer, query)) for query in queries])


def quantiles(milliseconds: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.quantile(milliseconds, (0.5, 0.99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99}


def write_queries(file: Path, known: Sequence[str], count: int, per_group: int) -> None:
    """Write ``count`` texts for jobs/predict.py: the known ones, with a number after each."""
    texts = [f"{known[row % len(known)]} {row // len(known)}" for row in range(count)]
    pq.write_table(pa.table({"text": texts}), file, row_group_size=per_group)


def seconds_of(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


@contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """Sample this process, its children, and Ray's object store, five times a second.

    Yields a dictionary that has, after the block, the peaks of memory in bytes and the processor
    seconds of all, also of children that end. ``driver`` counts all of this process's memory,
    ``driver_own`` and ``below`` what is not shared.
    """
    found = dict.fromkeys(("driver", "driver_own", "below", "object_store", "processor_s"), 0.0)
    here, used = psutil.Process(), dict[psutil.Process, float]()
    stored_before = shutil.disk_usage("/dev/shm").used

    def look() -> None:
        now = dict.fromkeys(found, 0.0)
        for process in [here, *here.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                memory, times = process.memory_info(), process.cpu_times()
                used[process] = times.user + times.system
                now["driver_own" if process == here else "below"] += memory.rss - memory.shared
                now["driver"] += memory.rss * (process == here)
        now["object_store"] = shutil.disk_usage("/dev/shm").used - stored_before
        found.update({name: max(value, found[name]) for name, value in now.items()})

    def sample(ended: Event) -> None:
        while not ended.wait(0.2):
            look()

    look()
    before = sum(used.values())
    with in_background(sample):
        yield found
    look()
    found["processor_s"] = sum(used.values()) - before


def prepared(dataset: str, encoder: "EncoderConfig") -> Prepared:
    """Prepare a dataset directory with the project's pipeline, in another process, or reuse it."""
    return Prepared(in_fresh_process(_prepare, dataset, encoder))


def _prepare(dataset: str, encoder: "EncoderConfig") -> Path:
    from ramen_ray.orchestration.cluster.joining import start_ray
    from ramen_ray.orchestration.prepare.pipeline import prepare
    from ramen_ray.orchestration.run.inputs import encoder_tokenizer

    start_ray()
    return prepare(Dataset(dataset), CACHE / "prepared", encoder_tokenizer(encoder)).path


def _rounded(value: Any) -> Any:
    """Keep four significant digits of every number within ``value``."""
    return json.loads(json.dumps(value), parse_float=lambda number: float(f"{float(number):.4g}"))
