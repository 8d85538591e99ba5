"""Parquet whose columns ask for types that run code, or for far more memory than disk."""

import pickle
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import CODE_TYPE, RunsCode, table_with_code

from ramen_ray.data.checks.structure import inspect_structure
from ramen_ray.data.checks.validation import validate
from ramen_ray.data.store import parquet_files
from ramen_ray.data.store.dataset import DatasetError, write_dataset
from ramen_ray.data.store.parquet_files import open_parquet

NESTED = {"plainly": "", "struct": ".inner", "list": ".element", "map": ".code.value"}
OPEN_WITH_RAY = """
import sys, ray.data
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.parquet_files import open_parquet
for file in sys.argv[1:]:
    try:
        open_parquet(file).read().to_pylist()
    except DatasetError as error:
        print(error)
"""


def test_types_are_refused_where_ray_has_registered_them(tmp_path):
    tables = {nested: table_with_code(tmp_path / "run", nested) for nested in NESTED}
    broken = {**CODE_TYPE, b"ARROW:extension:name": b"ray.data.arrow_tensor_v2"}
    broken[b"ARROW:extension:metadata"] = pickle.dumps(RunsCode(tmp_path / "run"))
    field = pa.field("code", pa.large_list(pa.int64()), metadata=broken)
    tables["damaged"] = pa.table([[[1]]], pa.schema([field]))
    files = [str(tmp_path / f"{name}.parquet") for name in tables]
    for table, file in zip(tables.values(), files, strict=True):
        pq.write_table(table, file)
    command = [sys.executable, "-c", OPEN_WITH_RAY, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for file, said in zip(files, done.stdout.splitlines(), strict=True):
        assert file in said and ("'code" in said or "damaged" in file)
    assert not (tmp_path / "run").exists()


def test_no_bit_of_a_dataset_flips_without_a_word(tmp_path):
    ads = pa.table({"ad_id": range(100), "text": [f"ad {n * n}" for n in range(100)]})
    dataset = write_dataset(tmp_path / "dataset", {"ads": ads}, name="made")
    (file,) = dataset.files("ads")
    whole = file.read_bytes()
    for place in range(4, len(whole) - pq.read_metadata(file).serialized_size - 8, 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            assert dataset.read("ads").equals(ads)  # bits that say nothing
        except (pa.ArrowException, OSError, DatasetError):
            continue


def test_a_small_file_of_long_cells_is_read_in_small_batches(tmp_path, monkeypatch):
    texts = ["a", None, "x" * 9_000, *["b"] * 1500, *["y" * 7_000] * 1500]
    lists = [[7] * 300] * len(texts)
    table = pa.table({"text": texts, "number": range(len(texts)), "list": lists})
    pq.write_table(table, tmp_path / "q.parquet", row_group_size=1700)
    limit = 1 << 20
    monkeypatch.setattr(parquet_files, "BYTES_PER_BATCH", limit)
    monkeypatch.setattr(parquet_files, "ROWS_AT_ONCE", 64)
    for columns in (["text", "number"], ["list"]):
        batches = list(open_parquet(tmp_path / "q.parquet").iter_batches(4096, columns=columns))
        assert pa.Table.from_batches(batches).equals(table.select(columns))
        assert limit / 2 < max(batch.nbytes for batch in batches) < 1.2 * limit
    sizes = map(len, open_parquet(tmp_path / "q.parquet").iter_batches(1000, columns=["number"]))
    assert list(sizes) == [960, 960, 960, 123]


def test_tables_of_a_dataset_that_would_take_gigabytes_are_refused(tmp_path, monkeypatch):
    """Rows may stand for far more than they take on disk: a text, or an id, is there once."""
    ids, texts = range(1_000), ["x" * 5_000] * 1_000
    tables = {
        "queries/train": pa.table({"query_id": ids, "text": texts, "ad_ids": [[0] * 999] * 1_000}),
        "ads": pa.table({"ad_id": ids, "text": texts}),
    }
    dataset = write_dataset(tmp_path / "dataset", tables, name="made")
    assert sum(file.stat().st_size for name in tables for file in dataset.files(name)) < 50_000
    assert dataset.read("ads").equals(tables["ads"])
    with monkeypatch.context() as patched:
        patched.setattr(parquet_files, "MIN_EXPANDED", 1 << 20)
        for read in (dataset.read, lambda table: list(dataset.batches(table))):
            for table in tables:
                with pytest.raises(DatasetError, match=rf"{table}\.parquet"):
                    read(table)
        assert "ads.parquet" in [finding.file for finding in validate(dataset)]
    monkeypatch.setattr(parquet_files, "MAX_VALUES", 998_999)
    with pytest.raises(DatasetError, match=r"train\.parquet.*'ad_ids"):
        dataset.read("queries/train")
    findings, _ = inspect_structure(dataset)
    assert "queries/train.parquet" in [finding.file for finding in findings]
