"""Rules against plain loops, tables in any order, and columns that must not be touched."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import query_table, text_table

from ramen_ray.data.checks import check, validate
from ramen_ray.data.findings import Finding
from ramen_ray.data.store import parquet_files
from ramen_ray.data.store.dataset import Dataset, write_dataset

NUM_NODES, NUM_ANCHORS = 40, 25


def _dataset(path: Path, pairs: np.ndarray) -> Dataset:
    """Train queries with the edges ``pairs`` (edges, 2)."""
    words = [f"word{number}" for number in range(NUM_NODES)]
    tables = {
        "ads": text_table("ad_id", words),
        "anchors/links": text_table("anchor_id", words[:NUM_ANCHORS]),
        "edges/links/query": pa.table(
            {"query_id": pairs[:, 0], "anchor_id": pairs[:, 1], "weight": np.ones(len(pairs))}
        ),
    }
    for split in ("train", "validation", "test"):
        queries = [f"{split} {word}" for word in words]
        tables[f"queries/{split}"] = query_table(queries, [[n] for n in range(NUM_NODES)])
    return write_dataset(path, tables, name="repeats")


def _repeats(dataset: Dataset) -> list[Finding]:
    return [found for found in validate(dataset) if "that an earlier row has" in found.message]


def test_rows_keep_their_numbers_in_large_tables_of_several_files(tmp_path: Path) -> None:
    """Row numbers are those of the engine, whose threads must not change them."""
    size, again = 400_000, [123_456, 300_001, 399_999]
    ids = np.arange(size)
    ids[again] = [7, 8, 9]
    rows = pa.table({"ad_id": ids, "text": [f"ad {number}" for number in range(size)]})
    pairs = np.stack([np.arange(NUM_NODES), np.arange(NUM_NODES) % NUM_ANCHORS], axis=1)
    path = _dataset(tmp_path / "large", pairs).path
    (path / "ads.parquet").unlink()
    (path / "ads.parquet").mkdir()
    pq.write_table(rows[:300_000], path / "ads.parquet" / "0.parquet", row_group_size=1000)
    pq.write_table(rows[300_000:], path / "ads.parquet" / "1.parquet")
    (finding,) = _repeats(Dataset(path))
    assert (finding.file, finding.row) == ("ads.parquet/0.parquet", again[0])
    assert ": 7, 8 (1.parquet, row 1), 9 (1.parquet, row 99999)" in finding.message


def test_columns_that_may_run_code_are_named_and_not_read(
    dataset_path: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(dataset_path, tmp_path / "mine")
    rows = pq.read_table(path / "ads.parquet")
    kind = pa.struct(
        [
            pa.field(
                "inner",
                pa.binary(),
                metadata={parquet_files.NAME_KEY: b"ray.data.arrow_pickled_object"},
            )
        ]
    )
    cells = pa.array([{"inner": b"cos\nsystem\n"}] * len(rows), kind)
    pq.write_table(rows.append_column(pa.field("code", kind), cells), path / "ads.parquet")
    (error,) = [found for found in validate(Dataset(path)) if found.severity == "error"]
    assert str(error).startswith(
        "ads.parquet, column 'code.inner': the column is of the type ray.data.arrow_pickled_object"
    )


def test_nothing_is_written_into_the_dataset_directory(dataset_path: Path, tmp_path: Path) -> None:
    path = shutil.copytree(dataset_path, tmp_path / "mine")
    folders = [path, *(folder for folder in path.rglob("*") if folder.is_dir())]
    before = {folder: folder.stat().st_mtime_ns for folder in folders}
    validate(Dataset(path))
    assert {folder: folder.stat().st_mtime_ns for folder in folders} == before


def test_anchor_sets_whose_names_differ_in_case_are_two(dataset_path: Path, tmp_path: Path) -> None:
    path = shutil.copytree(dataset_path, tmp_path / "mine")
    before = len(validate(Dataset(path)))
    shutil.copy(path / "anchors" / "links.parquet", path / "anchors" / "Links.parquet")
    shutil.copytree(path / "edges" / "links", path / "edges" / "Links")
    check(Dataset(path))
    leaks = [found for found in validate(Dataset(path)) if "joins a held-out" in found.message]
    assert [found.file for found in leaks] == ["edges/Links/ad.parquet", "edges/links/ad.parquet"]
    assert len(validate(Dataset(path))) == before + 1
