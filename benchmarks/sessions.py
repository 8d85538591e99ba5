"""Rows per second and peak memory of making co-session graphs from ever larger logs.

Logs of 0.1M and 1M events (CSV; sessions of about 6 events around one topic, queries that follow
Zipf's law, a third of them unknown to the dataset, clicks on half of the events, and one session
that holds a hundredth of all events) are made into the anchor sets of a dataset with a tenth as
many train queries and a twentieth as many ads, each size in a process of its own, on a Ray that
is running already. Memory is sampled: of the driver, of its Ray processes (without what they
share), and of /dev/shm, where Ray's object store lies.
`ratio` is the seconds per row at the largest size over those at the size before it.

    python -m benchmarks.sessions [--sizes 100000 1000000]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from benchmarks.common import finish, in_fresh_process, sampled_memory
from benchmarks.data_scale import texts
from ramen_ray.data.store.dataset import write_dataset

ROWS_PER_FILE = 500_000
EVENTS_PER_SESSION, ROWS_PER_QUERY, QUERIES_PER_AD, HELD_OUT = 6, 10, 2, 100
SPAN_S = 3000.0


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    sizes = parser.parse_args().sizes
    figures: dict[str, dict[str, float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            in_fresh_process(generate, Path(folder), size)
            figures[str(size)] = in_fresh_process(measure, Path(folder), size)
        print(f"{size} rows: {figures[str(size)]}", flush=True)
    seconds_per_row = [1 / figures[str(size)]["rows_per_s"] for size in sizes[-2:]]
    finish(seconds_per_row[-1] / seconds_per_row[0], figures)


def generate(folder: Path, num_rows: int) -> None:
    """Write a dataset directory and a log, in random order."""
    draw = np.random.default_rng(num_rows)
    num_train = num_rows // ROWS_PER_QUERY
    num_ads = num_train // QUERIES_PER_AD
    queries = _numbered_texts(draw, num_train + num_train // 2 + 2 * HELD_OUT)
    _write_dataset(folder / "dataset", queries[: num_train + 2 * HELD_OUT], num_ads, draw)
    session = draw.integers(0, num_rows // EVENTS_PER_SESSION, num_rows)
    session[: num_rows // 100] = 0
    topic = draw.integers(0, len(queries), num_rows)[session]
    query = (topic + np.minimum(draw.zipf(1.5, num_rows), len(queries))) % len(queries)
    ads = pc.binary_join_element_wise("ad", pa.array(query % num_ads).cast(pa.string()), "-")
    log = pa.table(
        {
            "session_id": session,
            "time": SPAN_S * (session + draw.random(num_rows)).round(6),
            "query": queries.take(pa.array(query)),
            "ad_id": pc.if_else(pa.array(draw.random(num_rows) < 0.5), ads, ""),
        }
    ).take(pa.array(draw.permutation(num_rows)))
    (folder / "log").mkdir()
    for start in range(0, num_rows, ROWS_PER_FILE):
        pa.csv.write_csv(log[start : start + ROWS_PER_FILE], folder / "log" / f"{start:010d}.csv")


def _numbered_texts(draw: np.random.Generator, count: int) -> pa.Array:
    rows = texts(draw, "number", count)
    numbers = rows["number"].cast(pa.string())
    return pc.binary_join_element_wise(rows["text"], numbers, " ").combine_chunks()


def _write_dataset(path: Path, queries: pa.Array, num_ads: int, draw: np.random.Generator) -> None:
    num_train = len(queries) - 2 * HELD_OUT
    ids = pc.binary_join_element_wise("ad", pa.array(range(num_ads)).cast(pa.string()), "-")
    ads = {"ad_id": range(num_ads), "text": _numbered_texts(draw, num_ads), "source_id": ids}
    tables = {"ads": pa.table(ads)}
    bounds = [0, num_train, num_train + HELD_OUT, len(queries)]
    for row, split in enumerate(("train", "validation", "test")):
        chosen = queries[bounds[row] : bounds[row + 1]]
        clicks = pa.ListArray.from_arrays(
            pa.array(range(len(chosen) + 1), pa.int32()), pa.array(np.arange(len(chosen)) % num_ads)
        )
        columns = {"query_id": range(len(chosen)), "text": chosen, "ad_ids": clicks}
        tables[f"queries/{split}"] = pa.table(columns)
    write_dataset(path, tables, name="generated")


def measure(folder: Path, num_rows: int) -> dict[str, float]:
    """Make the graphs, sampling the memory of this process and its children."""
    from ramen_ray.data.graphs.sessions import SessionLog, SessionSettings
    from ramen_ray.orchestration.cluster.resources import start_ray
    from ramen_ray.orchestration.preparation.sessions import add_co_session

    start_ray()
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    with sampled_memory() as peaks:
        log = SessionLog(str(folder / "log"))
        counts = add_co_session(folder / "dataset", log, SessionSettings())
    seconds = time.monotonic() - started
    return {
        "seconds": seconds,
        "rows_per_s": num_rows / seconds,
        "query_edges": counts["edges/co_session/query"],
        "ad_edges": counts["edges/co_click/ad"],
        "events_dropped": counts["events dropped"],
        "driver_before_mb": before / 1e6,
        "driver_peak_mb": peaks["driver"] / 1e6,
        "ray_processes_peak_mb": peaks["below"] / 1e6,
        "object_store_peak_mb": peaks["object_store"] / 1e6,
    }


if __name__ == "__main__":
    main()
