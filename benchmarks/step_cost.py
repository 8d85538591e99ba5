"""What a training step costs with the graph, or with a softmax and classifiers, over one without.

Trainings of the same encoder on the same data alternate in one process: two CPU threads, fp32, the
first steps not timed. `--rows graph` is in batch: without the graph, with anchors in each fourth
step, and in each one. `--rows softmax` is without the graph, with shortlists and clusters from the
untrained encoder: ance, depsl and unidec. `ratio` is a step of the last row over the first, on the
last set.

    python -m benchmarks.step_cost [--sets foldoc rdocs debian] [--rounds 3] [--seconds 4]
    python -m benchmarks.step_cost --rows softmax --sets foldoc
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers.utils.logging import set_verbosity_error

from benchmarks.common import NUM_THREADS, alternate, finish, medians, options, prepared
from benchmarks.in_process import Run, begin, shortlists
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.sampling.clustering import balanced_clusters
from ramen_ray.method.sampling.curriculum import Curriculum
from ramen_ray.method.training.step import train_steps
from ramen_ray.presets import bag, bag_ramen, minilm

WARMUP_STEPS = 4
IN_BATCH = {"base.kind": "in_batch", "walk.enabled": False}
PRESETS = {"foldoc": minilm, "rdocs": bag, "debian": bag}
ROWS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "graph": {
        "base": {**IN_BATCH, **WITHOUT_GRAPH},
        "every_4": {**IN_BATCH, "regularization.every_steps": 4},
        "every_1": {**IN_BATCH, "regularization.every_steps": 1},
    },
    "softmax": {base: {**WITHOUT_GRAPH, "base.kind": base} for base in ("ance", "depsl", "unidec")},
}


def main() -> None:
    """Measure one dataset after another."""
    asked = options(__doc__, rows="graph", sets=[*PRESETS], rounds=3, seconds=4.0)
    torch.set_num_threads(NUM_THREADS)
    set_verbosity_error()  # it would report the layers that are cut off
    rows = ROWS[asked.rows]
    presets = dict.fromkeys(PRESETS, bag_ramen) if asked.rows == "softmax" else PRESETS
    figures = {
        name: compare(presets[name](name), rows, asked.rounds, asked.seconds) for name in asked.sets
    }
    finish(figures[asked.sets[-1]][list(rows)[-1]]["ratio"], figures)


def compare(
    config: RunConfig, rows: Mapping[str, Mapping[str, Any]], rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Alternate all rows of a preset; returns medians, and seconds a step over the first row's."""
    print(f"{config.dataset}:")
    data = prepared(config.dataset, config.encoder)
    runs = {name: begun(overlay(config, changes), data) for name, changes in rows.items()}
    sides = {name: partial(measure, run, seconds) for name, run in runs.items()}
    found = {name: medians(values) for name, values in alternate(rounds, sides).items()}
    first = next(iter(found.values()))["seconds_per_step"]
    return {name: {"ratio": row["seconds_per_step"] / first, **row} for name, row in found.items()}


def begun(config: RunConfig, data: Prepared) -> Run:
    """Train the first steps of a new encoder, from shortlists and clusters if its base has them."""
    run, parts = begin(config, data), config.base.parts
    state = run.state
    if parts.hard_negatives == "shortlists":
        state.draws = replace(state.draws, shortlists=shortlists(run))
    if parts.order != "random":
        rows = run.sampler.data.clicked_rows
        queries = torch.from_numpy(run.model.embed_texts(data.queries["train"], rows))
        clusters = balanced_clusters(queries, run.sampler.batch_size, config.seed)
        state.draws = replace(state.draws, clusters=clusters)
        state.parts = [one for one in state.parts if not isinstance(one, Curriculum)]  # they stay
    list(train_steps(state, run.sampler, run.objective, WARMUP_STEPS))
    return run


def measure(run: Run, seconds: float) -> dict[str, float]:
    """Train on for some seconds; returns seconds per step."""
    first, started = run.state.step, time.perf_counter()
    while time.perf_counter() - started < seconds:
        stop = run.state.step + 4  # of which one draws anchors
        list(train_steps(run.state, run.sampler, run.objective, stop))
    return {"seconds_per_step": (time.perf_counter() - started) / (run.state.step - first)}


if __name__ == "__main__":
    main()
