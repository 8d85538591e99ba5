"""All stages of one size, in a fresh process."""

import json
import os
from pathlib import Path

from benchmarks.common import in_fresh_process
from benchmarks.scale.generated import Shape, generate
from benchmarks.scale.stages import ANCHOR_SET, Row, measure
from ramen_ray.data.store.dataset import Dataset


def measure_size(shape: Shape, folder: Path, stages: list[str], file: Path) -> dict[str, Row]:
    """Generate the tables and run the stages; returns the rows, which it adds to ``file``."""
    (folder / "source").mkdir()
    in_fresh_process(generate, folder / "source", shape, "sessions" in stages)
    in_fresh_process(_measure, shape, folder, stages, file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {row.pop("stage"): row for row in lines if row.pop("shape") == str(shape)}


def _measure(shape: Shape, folder: Path, stages: list[str], file: Path) -> None:
    def report(stage: str, row: Row) -> None:
        row["us_per_row"] = 1e6 * row["seconds"] / row["rows"]
        row["rows_per_processor_s"] = row["rows"] / row["processor_s"]
        row["load"] = os.getloadavg()[0]
        if (folder / "dataset").exists():
            row |= _sizes(Dataset(folder / "dataset"))
        print(f"{shape} {stage}: {row}", flush=True)
        with file.open("a") as stream:
            stream.write(json.dumps({"shape": str(shape), "stage": stage, **row}) + "\n")

    measure(stages, folder, report)


def _sizes(dataset: Dataset) -> dict[str, float]:
    """Count texts and edges of the dataset directory, without co-session graphs."""
    tables = [f"queries/{split}" for split in dataset.splits] + ["ads", f"anchors/{ANCHOR_SET}"]
    sides = [f"edges/{ANCHOR_SET}/{side}" for side in ("query", "ad")]
    size = sum(
        file.stat().st_size
        for table in [*tables, *sides]
        if dataset.has(table)
        for file in dataset.files(table)
    )
    return {
        "texts": sum(dataset.num_rows(table) for table in tables if dataset.has(table)),
        "edges": sum(dataset.num_rows(table) for table in sides if dataset.has(table)),
        "dataset_mb": size / 1e6,
    }
