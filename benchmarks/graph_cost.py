"""What the graph costs a training step: the presets of the built-in datasets over their bases.

Trainings of the same encoder alternate in one process: without the graph (`base`), with anchors in
each step, and in each fourth one (`every_1`, `every_4`). In batch, two CPU threads, fp32, the first
steps not timed. `ratio` is a step of the last preset, as often as it draws anchors, over its
base's. The distinct texts and tokens per step are printed too, as they determine what a
transformer's step costs.

    python -m benchmarks.graph_cost [--presets foldoc rdocs debian] [--rounds 3] [--seconds 4]
"""

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import set_verbosity_error

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, prepared
from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.sampling.step_inputs import DistinctTexts
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.step import TrainState, train_steps
from ramen_ray.orchestration.runs.components import (
    build_model,
    build_objective,
    build_sampler,
    build_state,
)
from ramen_ray.presets import bag, minilm

WARMUP_STEPS = 4
SIDES: dict[str, dict[str, Any]] = {
    "base": {
        "regularization.lambda_x": {},
        "regularization.lambda_z": {},
        "regularization.adaptive": False,
    },
    "every_1": {"regularization.every_steps": 1},
    "every_4": {"regularization.every_steps": 4},
}
PRESETS_OF = {"foldoc": minilm, "rdocs": bag, "debian": bag}


def main() -> None:
    """Measure one preset after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["foldoc", "rdocs", "debian"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each side in a round")
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    set_verbosity_error()  # it would report the layers that are cut off
    figures = {name: compare(name, options.rounds, options.seconds) for name in options.presets}
    last = options.presets[-1]
    every_steps = PRESETS_OF[last](last).regularization.every_steps
    finish(figures[last][f"every_{every_steps}_ratio"], figures)


def compare(preset: str, rounds: int, seconds: float) -> dict[str, float]:
    """Alternate all sides of a preset; returns medians and ratios to the base."""
    print(f"{preset}:")
    config = overlay(PRESETS_OF[preset](preset), {"base.kind": "in_batch"})
    data = prepared(str(ROOT / config.dataset), config.encoder)
    sides = {
        name: partial(measure, *training(overlay(config, changes), data), seconds)
        for name, changes in SIDES.items()
    }
    found = {side: medians(rows) for side, rows in alternate(rounds, sides).items()}
    base = found["base"]["seconds_per_step"]
    return {
        f"{side}_{what}": value
        for side, row in found.items()
        for what, value in {"ratio": row["seconds_per_step"] / base, **row}.items()
    }


def training(config: RunConfig, data: Prepared) -> tuple[TrainState, Sampler, Objective]:
    """Begin to train a new encoder."""
    objective, model = build_objective(config), build_model(config)
    keep_tokens(model.encoder, data.occurring_tokens)
    sampler = build_sampler(config, data, TrainingData.from_prepared(data, objective.regularizers))
    state = build_state(config, model, model, sampler)
    list(train_steps(state, sampler, objective, WARMUP_STEPS))
    return state, sampler, objective


def measure(
    state: TrainState, sampler: Sampler, objective: Objective, seconds: float
) -> dict[str, float]:
    """Train on for some seconds; returns seconds, texts and tokens per step."""
    first, started = state.step, time.perf_counter()
    while time.perf_counter() - started < seconds:
        list(train_steps(state, sampler, objective, state.step + 4))  # of which one draws anchors
    elapsed = time.perf_counter() - started
    batches = [
        sampler.draw(step, state.sources, objective.regularizers_at(step)) for step in range(8)
    ]
    texts = [DistinctTexts.from_batch(batch, sampler.data.tables) for batch in batches]
    return {
        "seconds_per_step": elapsed / (state.step - first),
        "texts_per_step": float(np.mean([len(step.lengths) for step in texts])),
        "tokens_per_step": float(np.mean([step.lengths.sum() for step in texts])),
    }


if __name__ == "__main__":
    main()
