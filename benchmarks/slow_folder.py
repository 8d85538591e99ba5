"""What copies on a machine's own disk bring where the shared folder is slow: `--local-folder`.

Generated data (queries, ads, anchors, with clicks and edges) lie in a folder that is mounted so
that each read waits (`benchmarks.slow_mount`; needs Linux and root). The same steps of a bag of
tokens, without Ray and with one thread, draw from the mounted folder (`shared`) and from a copy of
it on the disk (`local`), made as the workers of a run make it. They are timed with all data in
memory, and with none: before each step the pages are dropped, as on a machine whose memory is small
beside the data. Losses must be equal, or the benchmark fails. `ratio` is a step from the copy over
one from the mounted folder, with nothing in memory.

    python -m benchmarks.slow_folder [--queries 4000000] [--latency-ms 1] [--rounds 3] [--steps 5]
"""

import argparse
import ctypes
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import alternate, finish, medians
from benchmarks.slow_mount import slow_mount
from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.hashing import mix
from ramen_ray.data.store.checksums import write_checksums
from ramen_ray.data.store.local_copies import copy_folder
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.runs.components import (
    build_model,
    build_objective,
    build_sampler,
    build_state,
)
from ramen_ray.presets import bag

QUERIES_PER_AD, QUERIES_PER_ANCHOR = 4, 20
TOKENS, CLICKS, EDGES = 8, 2, 10  # of each text, query and node
VOCABULARY = range(2000, 8000)
CHANGES = {
    "regularization.lambda_x": {"links": 0.1},
    "regularization.lambda_z": {"links": 0.1},
    "regularization.adaptive": False,
    "training.global_batch_size": 256,
}
MADV_DONTNEED = 4


def main() -> None:
    """Make the data, mount and copy them, and alternate the sides."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=4_000_000)
    parser.add_argument("--latency-ms", type=float, default=1.0, help="of each read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each kind in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = overlay(bag("debian"), CHANGES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_data(folder / "prepared", options.queries)
        with slow_mount(folder / "prepared", folder / "mounted", options.latency_ms) as mounted:
            started = time.perf_counter()
            copy_folder(mounted, folder / "copy")
            copying = time.perf_counter() - started
            os.sync()  # pages that are not on the disk yet cannot be dropped
            sides = {"shared": mounted, "local": folder / "copy"}
            calls = {
                side: partial(measure, config, data, options.steps) for side, data in sides.items()
            }
            found = alternate(options.rounds, calls)
    if len({run["losses"] for runs in found.values() for run in runs}) > 1:
        sys.exit("the two sides do not come to the same losses")
    rows = {side: medians([run["figures"] for run in runs]) for side, runs in found.items()}
    figures = {
        "gigabytes": size / 1e9,
        "bytes_per_query": size / options.queries,
        "copying_s": copying,
        **rows,
        "rounds": {side: [run["figures"] for run in runs] for side, runs in found.items()},
    }
    key = "nothing_in_memory_s"
    finish(rows["local"][key] / rows["shared"][key], figures)


def write_data(folder: Path, num_queries: int) -> int:
    """Write prepared arrays of random texts, clicks and edges; returns their bytes."""
    draw = np.random.default_rng(0)
    num_ads, num_anchors = num_queries // QUERIES_PER_AD, num_queries // QUERIES_PER_ANCHOR
    tables = {"queries/train": num_queries, "ads": num_ads, "anchors/links": num_anchors}
    first = 0
    for table, rows in tables.items():
        target = folder / "tokens" / table
        target.mkdir(parents=True)
        tokens = draw.integers(VOCABULARY.start, VOCABULARY.stop, rows * TOKENS, dtype=np.uint16)
        np.save(target / "token_ids.npy", tokens)
        np.save(target / "offsets.npy", np.arange(rows + 1) * TOKENS)
        np.save(target / "hashes.npy", mix(np.arange(first, first + rows)))
        first += rows
    _random_csr(draw, num_queries, num_ads, CLICKS, np.int32).save(folder / "clicks" / "train")
    for side, rows in (("query", num_queries), ("ad", num_ads)):
        edges = _random_csr(draw, rows, num_anchors, EDGES, np.int64)
        edges.save(folder / "edges" / "links" / side)
    np.save(folder / "query_ids.npy", np.arange(num_queries))
    np.save(folder / "occurring_tokens.npy", np.arange(VOCABULARY.start, VOCABULARY.stop))
    write_checksums(folder)
    return sum(file.stat().st_size for file in folder.rglob("*.npy"))


def _random_csr(
    draw: np.random.Generator, rows: int, columns: int, degree: int, dtype: type[np.integer[Any]]
) -> Csr:
    indices = np.sort(draw.integers(0, columns, (rows, degree), dtype=dtype), axis=1)
    return Csr(np.arange(rows + 1) * degree, indices.reshape(-1))


def measure(config: RunConfig, folder: Path, steps: int) -> dict[str, Any]:
    """Time steps with all data in memory, and with none; returns the figures and the losses."""
    data, objective, model = Prepared(folder), build_objective(config), build_model(config)
    keep_tokens(model.encoder, data.occurring_tokens)
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sampler = build_sampler(config, data, training_data)
    state = build_state(config, model, model, sampler)
    losses = list(train_steps(state, sampler, objective, 1))
    for file in folder.rglob("*.npy"):
        file.read_bytes()
    seconds: dict[str, list[float]] = {"in_memory_s": [], "nothing_in_memory_s": []}
    read: list[int] = []
    for kind, of_kind in seconds.items():
        for _ in range(steps):
            if kind == "nothing_in_memory_s":
                drop_pages(folder)
            with _timed(of_kind, read):
                losses += train_steps(state, sampler, objective, state.step + 1)
    figures = {kind: float(np.median(of_kind)) for kind, of_kind in seconds.items()}
    figures["reads_in_memory"] = float(np.median(read[:steps]))
    figures["reads_nothing_in_memory"] = float(np.median(read[steps:]))
    return {"losses": torch.stack(losses).numpy().tobytes(), "figures": figures}


@contextmanager
def _timed(seconds: list[float], read: list[int]) -> Iterator[None]:
    """Note the seconds of the block, and how many pages it waited for."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    yield
    seconds.append(time.perf_counter() - started)
    read.append(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)


def drop_pages(folder: Path) -> None:
    """Drop the pages of a folder's files from this process and from the system's cache."""
    library = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f" {folder}/" in line:
            start, stop = (int(bound, 16) for bound in line.split()[0].split("-"))
            pages = ctypes.c_void_p(start), ctypes.c_size_t(stop - start)
            library.madvise(*pages, MADV_DONTNEED)
    for file in folder.rglob("*.npy"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
