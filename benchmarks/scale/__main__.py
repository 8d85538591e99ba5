"""Seconds and peak memory of every stage at growing sizes, from a user's tables to pruned graphs.

A size is a number of queries, with as many ads and anchors, 2 clicks a query, and, unless it says
otherwise (100000x20), 5 edges a node; degrees follow power laws. Its stages (`stages.py`) follow
one another, each in a process of its own with Ray started before; training is a bag's, batch 1024,
20 steps. Figures of each: seconds, processor seconds, microseconds a row, peak memory of the driver
with and without what it shares, of Ray's processes without, and of Ray's store. `--unit-costs` fits
costs of the stages too, and prints them as ramen_ray/machines.toml has them: give at least four
sizes, one with more edges; those of training come from batches of several sizes on the first.
`ratio` is the training's queries per processor second at the largest size over the smallest.

    python -m benchmarks.scale [--sizes 100000 1000000 10000000] [--unit-costs]
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from benchmarks.common import finish, in_fresh_process, options
from benchmarks.scale.generated import Shape, generate
from benchmarks.scale.stages import (
    ANCHOR_SET,
    BATCH_SIZE,
    SIDES,
    STAGES,
    Row,
    measure,
    num_rows,
    time_steps,
)
from ramen_ray.data.store.dataset import Dataset

DATA = {"text_s": "texts", "edge_s": "edges"}
COUNTED = {
    "clicks": {"row_s": "rows"},
    **dict.fromkeys(("edges", "validate", "describe", "prepare"), DATA),
    "walk": {"hop_s": "rows"},
    "train": {"text_s": "texts", "pair_s": "pairs"},
    "prune": {"edge_s": "rows"},
    "sessions": {"event_s": "rows"},
}
DEFAULT_EDGES = 5
FITTED_BATCHES = (BATCH_SIZE // 2, BATCH_SIZE, BATCH_SIZE * 3 // 2, BATCH_SIZE * 2)


def main() -> None:
    sizes = ["100000", "1000000", "10000000"]
    asked = options(__doc__, sizes=sizes, stages=list(STAGES), unit_costs=False)
    rows: dict[str, dict[str, Row]] = {}
    steps: list[Row] = []
    for shape in map(_shape, asked.sizes):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            rows[str(shape)] = measure_size(shape, folder, asked.stages)
            if asked.unit_costs and "train" in asked.stages and not steps:
                steps = [in_fresh_process(time_steps, folder, batch) for batch in FITTED_BATCHES]
    if asked.unit_costs:
        most_queries = max(_shape(size).queries for size in asked.sizes)
        for stage in COUNTED.keys() & set(asked.stages):
            of_sizes = [of_size[stage] for of_size in rows.values()]
            costs = fit(stage, steps if stage == "train" else of_sizes)
            print(as_toml(stage, costs, most_queries))
    trained = [of_size["train"] for of_size in rows.values() if "train" in of_size]
    rates = [row["rows_per_processor_s"] for row in trained] or [1.0]
    finish(rates[-1] / rates[0], {"stages": rows, "steps": steps})


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


def fit(stage: str, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of a stage's start, and of each of what it counts.

    Relative errors are least. Sizes with different numbers of edges per node tell texts from edges;
    batches of several sizes tell a step's texts from its pairs of a node with a candidate.
    """
    counted = COUNTED[stage]
    features = np.array([[1.0, *(row[name] for name in counted.values())] for row in rows])
    seconds = np.array([row["seconds"] for row in rows])
    scale = features.max(axis=0)
    found, _ = nnls(features / scale / seconds[:, None], np.ones(len(rows)))
    return dict(zip(("start_s", *counted), (found / scale).tolist(), strict=True))


def as_toml(stage: str, costs: Mapping[str, float], most_queries: int) -> str:
    """Return the costs of a stage as lines of ``machines.toml``, to go below a machine's."""
    lines = [f"{name} = {value:.3g}" for name, value in costs.items()]
    source = "benchmarks.scale --unit-costs"
    head = [f"[MACHINE.costs.{stage}]", f'source = "{source}"', f"most_queries = {most_queries}"]
    return "\n".join([*head, *lines]) + "\n"


def _shape(text: str) -> Shape:
    queries, _, edges = text.partition("x")
    return Shape(int(queries), int(edges or DEFAULT_EDGES))


if __name__ == "__main__":
    main()
