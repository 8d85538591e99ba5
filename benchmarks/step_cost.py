"""What a training step costs with the graph over one without.

Trainings of the same encoder on the same data alternate in one process, in batch: without the
graph, with anchors in each fourth step, and in each one. Two CPU threads, fp32, the first steps not
timed; foldoc with one layer of MiniLM, the others with a bag. `ratio` is a step with anchors in
each over one without, on the last set.

    python -m benchmarks.step_cost [--sets foldoc rdocs debian] [--rounds 3] [--seconds 4]
"""

import time
from functools import partial
from statistics import median

import torch
from transformers.utils.logging import set_verbosity_error

from benchmarks.common import NUM_THREADS, alternate, finish, options, prepared
from benchmarks.graph_gain import IN_BATCH, UNWALKED
from benchmarks.in_process import Run, begin
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.method.training.step import train_steps
from ramen_ray.presets import bag, minilm

WARMUP_STEPS = 4
PRESETS = {"foldoc": minilm, "rdocs": bag, "debian": bag}
ROWS = {
    "base": {**IN_BATCH, **WITHOUT_GRAPH},
    "every_4": {**IN_BATCH, **UNWALKED, "regularization.every_steps": 4},
    "every_1": {**IN_BATCH, **UNWALKED, "regularization.every_steps": 1},
}


def main() -> None:
    asked = options(__doc__, sets=[*PRESETS], rounds=3, seconds=4.0)
    torch.set_num_threads(NUM_THREADS)
    set_verbosity_error()  # it would report the layers that are cut off
    figures = {
        name: compare(PRESETS[name](name), asked.rounds, asked.seconds) for name in asked.sets
    }
    ms = figures[asked.sets[-1]]
    finish(ms["every_1"] / ms["base"], figures)


def compare(config: RunConfig, rounds: int, seconds: float) -> dict[str, float]:
    """Alternate all rows of a preset; returns the median milliseconds per step of each."""
    data = prepared(config.dataset, config.encoder)
    runs = {name: begin(overlay(config, changes), data) for name, changes in ROWS.items()}
    for run in runs.values():
        list(train_steps(run.state, run.sampler, run.objective, WARMUP_STEPS))
    sides = {name: partial(measure, run, seconds) for name, run in runs.items()}
    return {name: median(values) for name, values in alternate(rounds, sides).items()}


def measure(run: Run, seconds: float) -> float:
    """Train on for some seconds; returns milliseconds per step."""
    first, started = run.state.step, time.perf_counter()
    while time.perf_counter() - started < seconds:
        stop = run.state.step + 4  # of which one draws anchors
        list(train_steps(run.state, run.sampler, run.objective, stop))
    return 1000 * (time.perf_counter() - started) / (run.state.step - first)


if __name__ == "__main__":
    main()
