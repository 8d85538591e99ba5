"""A full disk is known whichever library finds it, and is told in one line."""

import sqlite3
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from ramen_ray.data.arrays import map_new_array

MUCH = np.arange(1 << 18, dtype=np.float32).reshape(-1, 64)


def _fill_a_database(file):
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as store:
        store.execute("pragma max_page_count = 4")
        store.execute("create table rows (text)")
        store.execute("insert into rows values (?)", ("x" * 100_000,))


WRITERS = {
    "numpy": lambda file: np.save(file.open("wb"), MUCH),
    "mapped": lambda file: map_new_array(file, np.float32, MUCH.shape),
    "pyarrow": lambda file: pq.write_table(pa.table({"x": MUCH.ravel()}), file),
    "torch": lambda file: torch.save(torch.from_numpy(MUCH), file),
    "safetensors": lambda file: save_file({"x": torch.from_numpy(MUCH)}, file),
    "sqlite": _fill_a_database,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_librarys_error_is_told_in_one_line(writer, small_disk, refused):
    job = SimpleNamespace(main=lambda: WRITERS[writer](small_disk / "file"))
    said = refused(job, f"--output={small_disk}")
    assert f"{small_disk} has 0." in said
