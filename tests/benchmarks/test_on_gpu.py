"""The script for a lent GPU, tried on the CPU."""

import csv

import pytest
from support import run_python

pytestmark = pytest.mark.slow


def test_all_parts_are_tried_and_a_part_that_is_cut_off_is_named(tmp_path):
    command = ["-m", "benchmarks.on_gpu", "--smoke", "--into", str(tmp_path)]
    done = run_python(*command, "--minutes", "25")
    ended = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": code" in line)
    logs = {file.stem: file.read_text() for file in tmp_path.glob("*.log")}
    assert {"tests", "memory", "gain_rdocs", "step", "profile"} <= ended.keys()
    for name, how in ended.items():
        # 5: of the tests all are left out, or none can run, where there is no GPU
        assert how.startswith(("code 0", "code 5") if name == "tests" else "code 0"), logs[name]
    with (tmp_path / "transformer_gain.csv").open() as table:
        variants = {row["variant"] for row in csv.DictReader(table)}
    assert variants >= {"tiny: no graph", "tiny: shuffled graph"}
    assert "s_per_step" in logs["memory"]
    assert "CPU time" in logs["profile"]

    short = run_python(*command, "--only", "memory", "--minutes", "0.1")
    assert "memory: cut off after" in short.stdout
