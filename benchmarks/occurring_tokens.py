"""What it brings that training has the token embeddings of the dataset's tokens only.

The preset's run as it is (`occurring`), and with the embeddings of the whole vocabulary
(`vocabulary`), alternate in one process: the same steps, in batch and without Ray, with one thread
and with two, and then one checkpoint each. The first steps of each round are not timed. Losses, and
metrics on the validation split, must be equal, or the benchmark fails. `ratio` is a step with the
vocabulary over one with the occurring tokens, with one thread.

    python -m benchmarks.occurring_tokens [--preset bag-ramen] [--rounds 5] [--steps 30]
"""

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, prepared
from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.checkpoints import save_checkpoint
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.runs.components import (
    build_model,
    build_objective,
    build_sampler,
    build_state,
)
from ramen_ray.presets import PRESETS

WARMUP_STEPS = 4
SIDES = {"vocabulary": False, "occurring": True}


def main() -> None:
    """Alternate both sides with each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="bag-ramen")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each side in a round")
    options = parser.parse_args()
    config = overlay(PRESETS[options.preset]("foldoc"), {"base.kind": "in_batch"})
    data = prepared(str(ROOT / config.dataset), config.encoder)
    figures: dict[str, Any] = {}
    for threads in range(1, NUM_THREADS + 1):
        torch.set_num_threads(threads)
        sides = {
            side: partial(measure, config, data, is_cut, options.steps)
            for side, is_cut in SIDES.items()
        }
        found = alternate(options.rounds, sides)
        if len({run["results"] for runs in found.values() for run in runs}) > 1:
            sys.exit("the two sides do not come to the same losses and metrics")
        rows = {side: medians([run["figures"] for run in runs]) for side, runs in found.items()}
        figures[f"threads_{threads}"] = {
            **rows,
            "ratios": {
                name: value / rows["occurring"][name] for name, value in rows["vocabulary"].items()
            },
        }
    finish(figures["threads_1"]["ratios"]["seconds_per_step"], figures)


def measure(config: RunConfig, data: Prepared, is_cut: bool, steps: int) -> dict[str, Any]:
    """Train some steps from a new encoder and write a checkpoint; returns figures and results."""
    objective, model = build_objective(config), build_model(config)
    if is_cut:
        keep_tokens(model.encoder, data.occurring_tokens)
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sampler = build_sampler(config, data, training_data)
    state = build_state(config, model, model, sampler)
    losses = list(train_steps(state, sampler, objective, WARMUP_STEPS))
    started, used = time.perf_counter(), time.process_time()
    losses += train_steps(state, sampler, objective, WARMUP_STEPS + steps)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        save_checkpoint(Path(folder), model, state, config.encoder.max_length, {})
        saving = time.perf_counter() - started
        files = [file for file in Path(folder).rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
    metrics, _ = evaluate(model, data, "validation", Propensity())
    return {
        "results": (torch.stack(losses).numpy().tobytes(), *metrics.items()),
        "figures": {
            "seconds_per_step": seconds / steps,
            "cpu_seconds_per_step": used / steps,
            "checkpoint_seconds": saving,
            "checkpoint_megabytes": size / 1e6,
            "rows_trained": float(np.shape(model.encoder.token_embeddings)[0]),
        },
    }


if __name__ == "__main__":
    main()
