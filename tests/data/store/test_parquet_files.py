"""Parquet whose columns ask for types that run code."""

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.data.store.parquet_files import open_parquet

PICKLES = {
    b"ARROW:extension:name": b"ray.data.arrow_pickled_object",
    b"ARROW:extension:metadata": b"",
}
OPEN_WITH_RAY = """
import sys, ray.data
from ramen_ray.data.store.parquet_files import open_parquet
open_parquet(sys.argv[1]).read().to_pylist()
"""


class RunsCode:
    """An object that, once unpickled, makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def marked(file: Path, nested: str) -> pa.Table:
    """Make a table with a cell that runs code where its type is registered."""
    cell = pickle.dumps(RunsCode(file))
    inner = pa.field("inner", pa.large_binary(), metadata=PICKLES)
    fields = {
        "plainly": (inner.with_name("code"), cell),
        "struct": (pa.field("code", pa.struct([inner])), {"inner": cell}),
        "list": (pa.field("code", pa.list_(inner)), [cell]),
        "map": (pa.field("code", pa.map_(pa.string(), inner)), [("key", cell)]),
    }
    field, value = fields[nested]
    return pa.table(
        [["a query"], pa.array([value], field.type)], pa.schema([("text", "string"), field])
    )


@pytest.mark.parametrize("nested", ["plainly", "struct", "list", "map"])
def test_a_column_that_runs_code_is_refused_by_name(tmp_path: Path, nested: str) -> None:
    pq.write_table(marked(tmp_path / "run", nested), tmp_path / "q.parquet")
    with pytest.raises(DatasetError, match=r"q\.parquet.*'code.*ray\.data\.arrow_pickled_object"):
        open_parquet(tmp_path / "q.parquet")


@pytest.mark.parametrize("nested", ["plainly", "struct", "list", "map"])
def test_the_type_is_refused_where_ray_has_registered_it(tmp_path: Path, nested: str) -> None:
    pq.write_table(marked(tmp_path / "run", nested), tmp_path / "q.parquet")
    said = subprocess.run(
        [sys.executable, "-c", OPEN_WITH_RAY, str(tmp_path / "q.parquet")],
        capture_output=True,
        text=True,
    )
    assert "DatasetError" in said.stderr and "'code" in said.stderr, said.stderr
    assert not (tmp_path / "run").exists()


def test_columns_of_plain_types_are_read(tmp_path: Path) -> None:
    uuids = pa.array([b"0123456789abcdef"], pa.uuid())
    table = pa.table({"id": uuids, "more": pa.array(["{}"], pa.json_())})
    pq.write_table(table, tmp_path / "q.parquet")
    assert open_parquet(tmp_path / "q.parquet").read().equals(table)


def test_no_table_of_a_dataset_may_hold_code(tmp_path: Path) -> None:
    ads = pa.table({"ad_id": [0], "text": ["an ad"]})
    dataset = write_dataset(tmp_path / "dataset", {"ads": ads}, name="made")
    (file,) = dataset.files("ads")
    code = marked(tmp_path / "run", "plainly")
    pq.write_table(ads.append_column(code.schema.field("code"), code["code"]), file)
    readers = [
        lambda: Dataset(dataset.path).num_rows("ads"),
        lambda: Dataset(dataset.path).read("ads"),
        lambda: list(Dataset(dataset.path).batches("ads", ["text"])),
    ]
    for read in readers:
        with pytest.raises(DatasetError, match=r"ads\.parquet.*'code'"):
            read()


def test_damaged_parameters_of_a_type_are_one_line(tmp_path: Path) -> None:
    broken = {**PICKLES, b"ARROW:extension:name": b"ray.data.arrow_tensor_v2"}
    broken[b"ARROW:extension:metadata"] = pickle.dumps(RunsCode(tmp_path / "run"))
    field = pa.field("code", pa.large_list(pa.int64()), metadata=broken)
    pq.write_table(pa.table([[[1]]], pa.schema([field])), tmp_path / "q.parquet")
    said = subprocess.run(
        [sys.executable, "-c", OPEN_WITH_RAY, str(tmp_path / "q.parquet")],
        capture_output=True,
        text=True,
    )
    assert "DatasetError" in said.stderr.splitlines()[-1], said.stderr
    assert not (tmp_path / "run").exists()
