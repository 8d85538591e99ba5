"""Memory of the driver while the data pipeline prepares ever larger data.

Datasets of 10K, 100K and 1M train queries (half as many ads, 2 clicks per query, one anchor set
with 5 edges per query and ad, texts of 3 to 8 words) are generated and prepared, each in a process
of its own. Its memory is sampled, and so are that of its Ray processes (without what they share)
and the growth of /dev/shm, where Ray's object store is.
`ratio` is the driver's peak at 1M over that at 10K.

    python -m benchmarks.data_scale [--sizes 10000 100000 1000000]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.common import finish, in_fresh_process, sampled_memory
from ramen_ray.config import EncoderConfig
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.presets import MINILM

WORDS = np.array(
    [f"{a}{b}" for a in "bcdfghklmnprst" for b in ("ana", "elo", "iru", "osta", "umi")]
)
CLICKS, EDGES = 2, 5
ENCODER = EncoderConfig(kind="bag", pretrained=MINILM, max_length=16)


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    sizes = parser.parse_args().sizes
    figures: dict[str, dict[str, float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows = in_fresh_process(generate, Path(folder) / "dataset", size)
            found = in_fresh_process(measure, Path(folder))
        figures[str(size)] = {**found, "rows": rows, "rows_per_s": rows / found["seconds"]}
        print(f"{size} queries: {figures[str(size)]}", flush=True)
    first, last = figures[str(sizes[0])], figures[str(sizes[-1])]
    finish(last["driver_peak_mb"] / first["driver_peak_mb"], figures)


def generate(path: Path, num_queries: int) -> int:
    """Write a dataset directory; returns its number of rows."""
    draw = np.random.default_rng(num_queries)
    num_ads = num_anchors = num_queries // 2
    held_out = max(num_queries // 100, 10)
    tables = {
        "ads": texts(draw, "ad_id", num_ads),
        "anchors/links": texts(draw, "anchor_id", num_anchors),
        "edges/links/query": _edges(draw, "query_id", num_queries, num_anchors),
        "edges/links/ad": _edges(draw, "ad_id", num_ads, num_anchors),
    }
    for split, count in (("train", num_queries), ("validation", held_out), ("test", held_out)):
        first = draw.integers(0, num_ads, count)
        clicks = np.stack([first, (first + 1) % num_ads], axis=1).reshape(-1)
        offsets = np.arange(count + 1, dtype=np.int32) * CLICKS
        ad_ids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(clicks))
        tables[f"queries/{split}"] = texts(draw, "query_id", count).append_column("ad_ids", ad_ids)
    write_dataset(path, tables, name=f"generated-{num_queries}")
    return sum(table.num_rows for table in tables.values())


def texts(draw: np.random.Generator, id_column: str, count: int) -> pa.Table:
    """Join 3 to 8 words whose frequencies fall as in Zipf's law."""
    frequencies = 1.0 / np.arange(1, len(WORDS) + 1)
    lengths = draw.integers(3, 9, count)
    words = draw.choice(len(WORDS), size=lengths.sum(), p=frequencies / frequencies.sum())
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(WORDS.tolist()).take(words))
    return pa.table({id_column: np.arange(count), "text": pc.binary_join(lists, " ")})


def _edges(draw: np.random.Generator, id_column: str, num_nodes: int, num_anchors: int) -> pa.Table:
    first = draw.integers(0, num_anchors, num_nodes)
    anchors = (first[:, None] + np.arange(EDGES)) % num_anchors
    nodes = np.repeat(np.arange(num_nodes), EDGES)
    weight = np.ones(len(nodes), dtype=np.float32)
    return pa.table({id_column: nodes, "anchor_id": anchors.reshape(-1), "weight": weight})


def measure(folder: Path) -> dict[str, float]:
    """Prepare ``folder/dataset`` and sample the memory of this process and its children."""
    from ramen_ray.orchestration.cluster.resources import start_ray
    from ramen_ray.orchestration.preparation.pipeline import prepare
    from ramen_ray.orchestration.runs.components import encoder_tokenizer

    tokenizer = encoder_tokenizer(ENCODER)
    start_ray()
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    with sampled_memory() as peaks:
        prepare(Dataset(folder / "dataset"), folder / "prepared", tokenizer)
    seconds = time.monotonic() - started
    return {
        "seconds": seconds,
        "driver_before_mb": before / 1e6,
        "driver_peak_mb": peaks["driver"] / 1e6,
        "ray_processes_peak_mb": peaks["below"] / 1e6,
        "object_store_peak_mb": peaks["object_store"] / 1e6,
    }


if __name__ == "__main__":
    main()
