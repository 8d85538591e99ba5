"""Imports and predictions whose disk is full: one line, and the same command goes on."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from support import PATIENCE_S, ROOT, resize, the_error

from jobs import ingest
from ramen_ray.data.store.dataset import Dataset

pytestmark = pytest.mark.slow


def _texts(count):
    """Make texts that hardly compress, so that they fill a disk."""
    draw = np.random.default_rng(0)
    return [draw.bytes(30).hex() for _ in range(count)]


def test_an_import_leaves_nothing_on_a_full_disk(cluster, small_disk, done, refused, tmp_path):
    texts = _texts(8_000)
    clicks = tmp_path / "clicks.csv"
    pa.csv.write_csv(pa.table({"query": texts[:4_000], "ad": texts[4_000:]}), clicks)
    flags = ["tables", "--clicks", clicks, "--name", "mine", "--output"]
    assert "no room is left on a disk" in refused(ingest, *flags, small_disk / "mine")
    assert list(small_disk.iterdir()) == []

    resize(small_disk, 20_000)
    for folder in (small_disk, tmp_path):
        done(ingest, *flags, folder / "mine")
    dataset = Dataset(small_disk / "mine")
    elsewhere = Dataset(tmp_path / "mine")
    assert set(dataset.tables) == set(elsewhere.tables)
    assert all(dataset.read(table) == elsewhere.read(table) for table in dataset.tables)


def test_predictions_go_on_when_there_is_room_again(
    joining, small_disk, logged_retriever, output, tmp_path
):
    queries = tmp_path / "queries.parquet"
    pq.write_table(pa.table({"text": _texts(24_000)}), queries, row_group_size=4_000)
    flags = ["--model", logged_retriever, "--queries", str(queries), "--output", str(output)]

    def predict(answers):
        """Run the job in a process of its own, with which its actors end."""
        command = [sys.executable, str(ROOT / "jobs" / "predict.py"), *flags, "--answers"]
        where = {"env": joining, "cwd": ROOT, "timeout": PATIENCE_S}
        done = subprocess.run([*command, str(answers)], capture_output=True, text=True, **where)
        return done.returncode, done.stdout + done.stderr

    code, said = predict(small_disk / "answers")
    assert code == 2, said
    assert "no room is left on a disk" in the_error(said)
    before = _files(small_disk / "answers")
    assert {pq.read_metadata(part).num_rows for part in before} <= {4_000}

    resize(small_disk, 20_000)
    for folder in (small_disk, tmp_path):
        code, said = predict(folder / "answers")
        assert code == 0, said
    found = _files(small_disk / "answers")
    expected = _files(tmp_path / "answers")
    assert [part.read_bytes() for part in found] == [part.read_bytes() for part in expected]
    assert len(found) == 6


def _files(answers):
    return sorted(answers.glob("part-*"))
