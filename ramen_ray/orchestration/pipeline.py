"""The data pipeline: Ray Data turns a dataset directory into prepared, memory-mapped arrays, once.

Two streaming executions (texts, edges) read the parquet files, check and tokenise their rows, sort
them by table and key, which shuffles the train queries globally together with their clicks and
edges, and write parts; a task joins the parts. Rows never pass through the driver.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

from ramen_ray.data.dataset import Dataset
from ramen_ray.data.preparation import edge_rows, join_parts, text_rows, write_filters, write_parts
from ramen_ray.data.prepared import Prepared
from ramen_ray.data.schemas import schema_of
from ramen_ray.data.statistics import dataset_statistics
from ramen_ray.data.validation import check_structure, raise_if_any, read_tables, row_problems
from ramen_ray.method.texts import TextTokenizer
from ramen_ray.orchestration.cluster import user_errors

PREPARED_VERSION = 1
ROWS_PER_BATCH = 16_384
GROUPS_PER_TASK = 4


def prepare(dataset: Dataset, cache: Path, tokenizer: TextTokenizer) -> Prepared:
    """Return ``dataset`` prepared with ``tokenizer``, made if not in ``cache``.

    The cache is keyed by the content of the tables, the tokenizer and its settings.

    Raises:
        DatasetError: a table is missing or a row is wrong; nothing is left in the cache.
    """
    num_rows = check_structure(dataset)
    target = cache / _cache_key(dataset, tokenizer)
    if target.is_dir():
        return Prepared(target)
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=cache))
    aside.chmod(0o755)
    try:
        with user_errors():
            _prepare_into(aside, dataset, tokenizer, num_rows)
        _rename(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Prepared(target)


def _prepare_into(
    folder: Path, dataset: Dataset, tokenizer: TextTokenizer, num_rows: dict[str, int]
) -> None:
    tables = [table for table in read_tables(dataset) if not table.startswith("filters/")]
    edges = [table for table in tables if table.startswith("edges/")]
    texts = [table for table in tables if table not in edges]
    to_text_rows = partial(text_rows, tokenize=tokenizer)
    parts = [_run(dataset, texts, to_text_rows, ["table", "key"], folder, num_rows)]
    if edges:
        keys = ["table", "key", "anchor_id"]
        parts.append(_run(dataset, edges, edge_rows, keys, folder, num_rows))
    join = ray.remote(join_parts).options(num_cpus=1)
    ray.get(join.remote(pa.concat_tables(parts), folder, num_rows, tokenizer.vocab_size))
    shutil.rmtree(folder / "parts")
    statistics = ray.remote(dataset_statistics).options(num_cpus=1)
    for split in ("validation", "test"):
        table = f"filters/{split}"
        pairs = dataset.read(table) if dataset.has(table) else None
        if pairs is not None:
            raise_if_any(dataset, row_problems(table, pairs, num_rows))
        write_filters(folder, split, pairs)
    description = {
        "dataset": str(dataset.path),
        "name": dataset.name,
        "anchor_sets": dataset.anchor_sets,
        "statistics": ray.get(statistics.remote(dataset)),
    }
    (folder / "prepared.json").write_text(json.dumps(description, indent=2) + "\n")


def _run(
    dataset: Dataset,
    tables: list[str],
    to_rows: Callable[[str, pa.Table], pa.Table],
    sort_keys: list[str],
    folder: Path,
    num_rows: dict[str, int],
) -> pa.Table:
    """Stream ``tables`` through read, check, ``to_rows``, sort and write; returns the parts' list.

    The unit of reading is a parquet row group, of whichever table, so that one execution, whose
    start costs seconds, serves all tables.
    """
    groups = [
        {"table": table, "file": str(file), "row_group": row_group}
        for table in tables
        for file in dataset.files(table)
        for row_group in range(pq.read_metadata(file).num_row_groups)
    ]
    num_blocks = min(len(groups), max(len(groups) // GROUPS_PER_TASK, _num_cpus()))
    ray.data.DataContext.get_current().default_hash_shuffle_parallelism = num_blocks
    rows = ray.data.from_items(groups, override_num_blocks=num_blocks).map_batches(
        _read_checked,
        fn_args=(str(dataset.path), to_rows, num_rows),
        batch_format="pyarrow",
        batch_size=1,
    )
    parts = rows.sort(sort_keys).map_batches(
        write_parts,
        fn_args=(folder / "parts",),
        batch_format="pyarrow",
        batch_size=None,
        zero_copy_batch=True,
    )
    return pa.Table.from_pylist(parts.take_all())


def _read_checked(
    group: pa.Table,
    dataset: str,
    to_rows: Callable[[str, pa.Table], pa.Table],
    num_rows: dict[str, int],
) -> Iterator[pa.Table]:
    (item,) = group.to_pylist()
    table = item["table"]
    batches = pq.ParquetFile(item["file"]).iter_batches(
        batch_size=ROWS_PER_BATCH,
        row_groups=[item["row_group"]],
        columns=schema_of(table).names,
    )
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        raise_if_any(Dataset(dataset), row_problems(table, rows, num_rows))
        yield to_rows(table, rows)


def _num_cpus() -> int:
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def _cache_key(dataset: Dataset, tokenizer: TextTokenizer) -> str:
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{PREPARED_VERSION}{dataset.fingerprint}{tokenizer}".encode())
    return f"{dataset.name}-{digest.hexdigest()}"


def _rename(aside: Path, target: Path) -> None:
    try:
        aside.rename(target)
    except OSError:
        if not target.is_dir():  # else another run prepared the same meanwhile
            raise
