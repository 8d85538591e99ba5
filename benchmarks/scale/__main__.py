"""Seconds and peak memory of every stage at growing sizes, from a user's tables to pruned graphs.

A size is a number of queries, with as many ads and anchors, 2 clicks a query, and, unless it says
otherwise (100000x20), 5 edges a node; degrees follow power laws. Its stages (`stages.py`) follow
one another, each in a process of its own with Ray started before; training is a bag's, batch 1024,
20 steps. Figures of each: seconds, processor seconds, microseconds a row, peak memory of the driver
with and without what it shares, of Ray's processes without, and of Ray's store.
`ratio` is the training's queries per processor second at the largest size over the smallest.

    python -m benchmarks.scale [--sizes 100000 1000000 10000000]
"""

import os
import tempfile
from pathlib import Path

from benchmarks.common import finish, in_fresh_process, options
from benchmarks.scale.generated import Shape, generate
from benchmarks.scale.stages import (
    ANCHOR_SET,
    SIDES,
    STAGES,
    Row,
    measure,
    num_rows,
)
from ramen_ray.data.store.dataset import Dataset

DEFAULT_EDGES = 5


def main() -> None:
    sizes = ["100000", "1000000", "10000000"]
    asked = options(__doc__, sizes=sizes, stages=list(STAGES))
    rows: dict[str, dict[str, Row]] = {}
    for shape in map(_shape, asked.sizes):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            rows[str(shape)] = measure_size(shape, folder, asked.stages)
    trained = [of_size["train"] for of_size in rows.values() if "train" in of_size]
    rates = [row["rows_per_processor_s"] for row in trained] or [1.0]
    finish(rates[-1] / rates[0], {"stages": rows})


def measure_size(shape: Shape, folder: Path, stages: list[str]) -> dict[str, Row]:
    """Generate the tables and run the stages; prints and returns their figures."""
    (folder / "source").mkdir()
    in_fresh_process(generate, folder / "source", shape, "sessions" in stages)
    rows = {}
    for stage in stages:
        row = rows[stage] = in_fresh_process(measure, stage, folder)
        row["us_per_row"] = 1e6 * row["seconds"] / row["rows"]
        row["rows_per_processor_s"] = row["rows"] / row["processor_s"]
        row["load"] = os.getloadavg()[0]
        if (folder / "dataset").exists():
            row |= _sizes(Dataset(folder / "dataset"))
        print(f"{shape} {stage}: {row}", flush=True)
    return rows


def _sizes(dataset: Dataset) -> dict[str, float]:
    of_texts = [f"queries/{split}" for split in dataset.splits] + ["ads", f"anchors/{ANCHOR_SET}"]
    of_edges = [f"edges/{one.path}" for one in SIDES]
    return {
        name: num_rows(dataset, filter(dataset.has, tables))
        for name, tables in (("texts", of_texts), ("edges", of_edges))
    }


def _shape(text: str) -> Shape:
    queries, _, edges = text.partition("x")
    return Shape(int(queries), int(edges or DEFAULT_EDGES))


if __name__ == "__main__":
    main()
