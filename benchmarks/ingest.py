"""Rows per second and peak memory of importing a user's own clicks or edges, at ever larger sizes.

Clicks (0.1M, 1M, 10M rows of query id, ad id and count) over a fifth as many queries and a tenth as
many ads, all generated as parquet, are imported with Ray on this machine's cores, each size in a
process of its own. Memory is sampled: of the driver, of its Ray processes (without what
they share), and of /dev/shm, where Ray's object store lies.
With ``--edges`` as many edges of a fifth as many queries are added to a dataset directory instead,
weighted, with half as many anchors, named by their texts.
`ratio` is the seconds per row at the largest size over those at the size before it.

    python -m benchmarks.ingest [--sizes 100000 1000000 10000000] [--edges]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.common import finish, in_fresh_process, sampled_memory
from benchmarks.data_scale import texts
from ramen_ray.data.store.dataset import write_dataset

ROWS_PER_FILE = 1_000_000
CLICKS_PER_QUERY, QUERIES_PER_AD = 5, 2


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--edges", action="store_true")
    arguments = parser.parse_args()
    sizes = arguments.sizes
    of_clicks, of_edges = (generate, measure), (generate_edges, measure_edges)
    generating, measuring = of_edges if arguments.edges else of_clicks
    figures: dict[str, dict[str, float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            in_fresh_process(generating, Path(folder), size)
            figures[str(size)] = in_fresh_process(measuring, Path(folder), size)
        print(f"{size} rows: {figures[str(size)]}", flush=True)
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
    """Import the tables in ``folder``, sampling the memory of this process and its children."""
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
    return _measured(lambda: import_tables(tables, folder / "dataset"), num_clicks)


def generate_edges(folder: Path, num_edges: int) -> None:
    """Write a dataset directory and edges of its train queries, which follow Zipf's law."""
    num_queries = num_edges // CLICKS_PER_QUERY
    draw = np.random.default_rng(num_edges)
    tables = {"ads": texts(draw, "ad_id", 1)}
    for split, count in (("train", num_queries), ("validation", 1), ("test", 1)):
        rows = texts(draw, "query_id", count)
        one_ad = pa.FixedSizeListArray.from_arrays(np.zeros(count, np.int64), 1)
        rows = rows.append_column("ad_ids", one_ad.cast(pa.list_(pa.int64())))
        ids = _ids(f"{split} query", np.arange(count))
        tables[f"queries/{split}"] = rows.append_column("source_id", ids)
    write_dataset(folder / "dataset", tables, name="edges")
    (folder / "edges").mkdir()
    for start in range(0, num_edges, ROWS_PER_FILE):
        count = min(ROWS_PER_FILE, num_edges - start)
        columns = {
            "query": _ids("train query", _skewed(draw, num_queries, count)),
            "anchor": _ids("the anchor of number", _skewed(draw, num_edges // 2, count)),
            "weight": draw.random(count) + 0.1,
        }
        file = folder / "edges" / f"{start:010d}.parquet"
        pq.write_table(pa.table(columns), file, row_group_size=ROWS_PER_FILE // 4)


def measure_edges(folder: Path, num_edges: int) -> dict[str, float]:
    """Add the edges in ``folder`` to its dataset directory."""
    from ramen_ray.data.graphs.edge_import import add_edge_list
    from ramen_ray.data.graphs.edge_lists import EdgeList
    from ramen_ray.orchestration.cluster.tasks import in_tasks

    edges = EdgeList(query_edges=str(folder / "edges"), weight_column="weight")
    add = partial(add_edge_list, folder / "dataset", "mine", edges, run=in_tasks)
    return _measured(add, num_edges)


def _measured(import_rows: Callable[[], object], num_rows: int) -> dict[str, float]:
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    with sampled_memory() as peaks:
        import_rows()
    seconds = time.monotonic() - started
    return {
        "seconds": seconds,
        "rows_per_s": num_rows / seconds,
        "driver_before_mb": before / 1e6,
        "driver_peak_mb": peaks["driver"] / 1e6,
        "ray_processes_peak_mb": peaks["below"] / 1e6,
        "object_store_peak_mb": peaks["object_store"] / 1e6,
    }


if __name__ == "__main__":
    main()
