"""Seconds of an exact search in shards that actors hold, over those of one process.

Random unit-norm embeddings in a file. In turns, `one` searches the ads in a process, part by part,
and `shards` has them searched by actors, including the start of the actors but not of Ray; each
process has one thread. `actor_mb` is the most memory of its own that an actor had; `shard_mb` is
the size of the embeddings that it holds. `same` says whether both found the same to the bit.

    python -m benchmarks.sharded_search [--ads 200000] [--queries 2000] [--shards 4] [--rounds 3]
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import faiss
import numpy as np
import psutil

from benchmarks.common import alternate, finish, in_fresh_process, medians
from ramen_ray.method.retrieval.search import TopK, search_parts
from ramen_ray.method.retrieval.shards import BYTES_PER_NUMBER, embedded_shards

WIDTH, TOP_K = 384, 100
NUM_CPUS = 2
ADS_PER_PART = 65_536
NUM_THREADS = 1  # of each process


def main() -> None:
    """Measure both sides in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ads", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        file = Path(aside) / "embeddings.npy"
        write_embeddings(file, asked.queries + asked.ads)
        figures = in_fresh_process(measure, file, asked.queries, asked.shards, asked.rounds)
    finish(figures["shards_s"] / figures["one_s"], {**vars(asked), **figures})


def write_embeddings(file: Path, num_rows: int) -> None:
    """Write random embeddings: the queries, then the ads."""
    rows = np.random.default_rng(0).standard_normal((num_rows, WIDTH), dtype=np.float32)
    np.save(file, rows / np.linalg.norm(rows, axis=1, keepdims=True))


def measure(file: Path, num_queries: int, num_shards: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of both sides, and the largest memory of an actor."""
    from ramen_ray.orchestration.cluster.resources import start_ray
    from ramen_ray.orchestration.search import ShardResources, search_shards

    start_ray()
    num_ads = len(np.load(file, mmap_mode="r")) - num_queries
    gb_per_shard = 1.02 * num_ads / num_shards * WIDTH * BYTES_PER_NUMBER / 1e9
    shards = embedded_shards(file, num_queries, gb_per_shard)
    found: dict[str, TopK] = {}
    peaks: list[int] = []

    def in_shards() -> dict[str, float]:
        started = time.monotonic()
        resources = ShardResources(NUM_THREADS, NUM_CPUS / num_shards)
        with tempfile.TemporaryDirectory() as attempts, peak_of_actors(peaks):
            asked = file, num_queries
            found["shards"] = search_shards(shards, asked, TOP_K, resources, Path(attempts))
        return {"seconds": time.monotonic() - started}

    def in_one() -> dict[str, float]:
        started = time.monotonic()
        found["one"] = search_one(file, num_queries)
        return {"seconds": time.monotonic() - started}

    results = alternate(rounds, {"one": in_one, "shards": in_shards})
    one, other = found["one"], found["shards"]
    same = np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])
    return {
        "one_s": medians(results["one"])["seconds"],
        "shards_s": medians(results["shards"])["seconds"],
        "actor_mb": max(peaks) / 1e6,
        "shard_mb": max(shard.num_bytes for shard in shards) / 1e6,
        "num_shards": len(shards),
        "same": same,
    }


def search_one(file: Path, num_queries: int) -> TopK:
    """Search as a task does that has all ads to itself."""
    faiss.omp_set_num_threads(NUM_THREADS)
    embeddings = np.load(file, mmap_mode="r")
    queries, ads = embeddings[:num_queries], embeddings[num_queries:]
    parts = (ads[start : start + ADS_PER_PART] for start in range(0, len(ads), ADS_PER_PART))
    none = np.empty((0, 2), dtype=np.int64)
    return search_parts(queries, parts, np.arange(len(ads)), none, TOP_K)


@contextmanager
def peak_of_actors(peaks: list[int]) -> Iterator[None]:
    """Sample the private memory of the actors that hold shards; adds the largest to ``peaks``."""
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if "SearchShard" in process.name() or "SearchShard" in " ".join(
                        process.cmdline()
                    ):
                        peaks.append(process.memory_full_info().uss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
