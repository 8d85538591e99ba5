"""Rows a second and peak memory of importing a user's own tables, at ever larger sizes.

Clicks (0.1M, 1M, 10M rows of query id, ad id and count) over a fifth as many queries and a tenth as
many ads, all generated as parquet, are imported with Ray on this machine's cores, each size in a
process of its own. Memory is sampled meanwhile: of the driver, of its Ray processes (without what
they share), and of /dev/shm, where Ray's object store lies.
`ratio` is the seconds per row at the largest size over those at the size before it.

    python -m benchmarks.ingest [--sizes 100000 1000000 10000000]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.common import finish, in_fresh_process, sampled_memory
from benchmarks.data_scale import texts

ROWS_PER_FILE = 1_000_000
CLICKS_PER_QUERY, QUERIES_PER_AD = 5, 2


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    sizes = parser.parse_args().sizes
    figures: dict[str, dict[str, float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            in_fresh_process(generate, Path(folder), size)
            figures[str(size)] = in_fresh_process(measure, Path(folder), size)
        print(f"{size} clicks: {figures[str(size)]}", flush=True)
    seconds_per_row = [1 / figures[str(size)]["rows_per_s"] for size in sizes[-2:]]
    finish(seconds_per_row[-1] / seconds_per_row[0], figures)


def generate(folder: Path, num_clicks: int) -> None:
    """Write tables of queries and ads, and clicks whose queries and ads follow Zipf's law."""
    num_queries = num_clicks // CLICKS_PER_QUERY
    num_ads = num_queries // QUERIES_PER_AD
    draw = np.random.default_rng(num_clicks)
    for kind, count in (("query", num_queries), ("ad", num_ads)):
        rows = texts(draw, "number", count)
        numbered = pc.binary_join_element_wise(rows["text"], rows["number"].cast(pa.string()), " ")
        table = pa.table({f"{kind}_id": _ids(kind, np.arange(count)), "text": numbered})
        pq.write_table(table, folder / f"{kind}.parquet", row_group_size=ROWS_PER_FILE // 4)
    (folder / "clicks").mkdir()
    for start in range(0, num_clicks, ROWS_PER_FILE):
        count = min(ROWS_PER_FILE, num_clicks - start)
        columns = {
            "query_id": _ids("query", _skewed(draw, num_queries, count)),
            "ad_id": _ids("ad", _skewed(draw, num_ads, count)),
            "count": draw.integers(1, 10, count),
        }
        file = folder / "clicks" / f"{start:010d}.parquet"
        pq.write_table(pa.table(columns), file, row_group_size=ROWS_PER_FILE // 4)


def _skewed(draw: np.random.Generator, limit: int, count: int) -> np.ndarray:
    """Draw numbers below ``limit``, small ones more often."""
    return (limit * draw.random(count) ** 2).astype(np.int64)


def _ids(kind: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(kind, pa.array(numbers).cast(pa.string()), "-")


def measure(folder: Path, num_clicks: int) -> dict[str, float]:
    """Import the tables in ``folder``, sampling the memory of this process and of those below."""
    from ramen_ray.data.importers.tables.settings import Columns, UserTables
    from ramen_ray.orchestration.cluster.resources import start_ray
    from ramen_ray.orchestration.preparation.tables import import_tables

    start_ray()
    tables = UserTables(
        clicks=str(folder / "clicks"),
        queries=str(folder / "query.parquet"),
        ads=str(folder / "ad.parquet"),
        columns=Columns(clicks_weight="count"),
    )
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    with sampled_memory() as peaks:
        import_tables(tables, folder / "dataset")
    seconds = time.monotonic() - started
    return {
        "seconds": seconds,
        "rows_per_s": num_clicks / seconds,
        "driver_before_mb": before / 1e6,
        "driver_peak_mb": peaks["driver"] / 1e6,
        "ray_processes_peak_mb": peaks["below"] / 1e6,
        "object_store_peak_mb": peaks["object_store"] / 1e6,
    }


if __name__ == "__main__":
    main()
