"""All stages of one size, each in a fresh process, as a user's jobs are."""

import os
from pathlib import Path

from benchmarks.common import in_fresh_process
from benchmarks.scale.generated import Shape, generate
from benchmarks.scale.stages import ANCHOR_SET, Row, measure
from ramen_ray.data.store.dataset import Dataset


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
