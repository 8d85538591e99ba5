"""What the graph regularisers cost a training step.

Two trainings of the same encoder on foldoc alternate in one process: `plain` (no anchor set) and
`graphs` (both anchor sets, weight 0.1 on both sides); batches of 256, two CPU threads, fp32, the
first steps of each round not timed. `ratio` is seconds per step with graphs over plain for
all-MiniLM cut to two layers; `bag_ratio` is the same for the bag of embeddings. The distinct texts
and their tokens per step stand beside them, for a step costs what it encodes.

    python -m benchmarks.graph_cost [--rounds 3] [--steps 15]
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers.utils.logging import set_verbosity_error

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, prepared
from ramen_ray.config import EncoderConfig
from ramen_ray.data.prepared import Prepared
from ramen_ray.method.encoder import Encoder, build_bag, build_transformer
from ramen_ray.method.optimization import build_optimizer, build_schedule
from ramen_ray.method.training import (
    Batches,
    Objective,
    TrainState,
    distinct_texts,
    train_steps,
)

BATCH_SIZE = 256
WARMUP_STEPS = 2
BAG_STEPS_PER_STEP = 10  # a step of the bag takes a small part of the transformer's
NUM_LAYERS = 2
LEARNING_RATE = 1e-4
WEIGHT = 0.1
ENCODERS = {
    "transformer": EncoderConfig(kind="transformer", num_layers=NUM_LAYERS),
    "bag": EncoderConfig(kind="bag"),
}


def main() -> None:
    """Measure the transformer, then the bag."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="timed steps of a round")
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    set_verbosity_error()  # it reports the layers that are cut off
    figures: dict[str, dict[str, float]] = {}
    for kind, config in ENCODERS.items():
        print(f"{kind}:")
        data = prepared(str(ROOT / "datasets" / "foldoc"), config)
        steps = options.steps * (BAG_STEPS_PER_STEP if kind == "bag" else 1)
        sides = {
            "plain": lambda data=data, config=config, steps=steps: measure(data, config, [], steps),
            "graphs": lambda data=data, config=config, steps=steps: measure(
                data, config, data.anchor_sets, steps
            ),
        }
        figures[kind] = compare(options.rounds, sides)
    bag = figures["bag"]["ratio"]
    finish(figures["transformer"]["ratio"], {"bag_ratio": bag, **figures})


def compare(rounds: int, sides: dict[str, Callable[[], dict[str, float]]]) -> dict[str, float]:
    """Alternate the two trainings; returns their medians and ratios."""
    results = {side: medians(rows) for side, rows in alternate(rounds, sides).items()}
    plain, graphs = results["plain"], results["graphs"]
    return {
        "ratio": graphs["seconds_per_step"] / plain["seconds_per_step"],
        "token_ratio": graphs["tokens_per_step"] / plain["tokens_per_step"],
        **{f"{side}_{name}": value for side, row in results.items() for name, value in row.items()},
    }


def measure(
    data: Prepared, config: EncoderConfig, anchor_sets: list[str], steps: int
) -> dict[str, float]:
    """Train one round from a new encoder; returns seconds, texts and tokens per step."""
    weights = dict.fromkeys(anchor_sets, WEIGHT)
    objective = Objective(0.3, 10, False, weights, weights)
    batches = Batches.of(data, objective.anchor_sets, BATCH_SIZE, seed=0)
    encoder = build(config)
    optimizer = build_optimizer(encoder, LEARNING_RATE, weight_decay=0.01)
    stop = WARMUP_STEPS + steps
    state = TrainState(encoder, optimizer, build_schedule(optimizer, 0, stop))
    ends = [time.perf_counter() for _ in train_steps(state, batches, objective, stop)]
    texts = [distinct_texts(batches.draw(s), batches.tables) for s in range(WARMUP_STEPS, stop)]
    return {
        "seconds_per_step": (ends[-1] - ends[WARMUP_STEPS - 1]) / steps,
        "texts_per_step": float(np.mean([len(step.lengths) for step in texts])),
        "tokens_per_step": float(np.mean([step.lengths.sum() for step in texts])),
    }


def build(config: EncoderConfig) -> Encoder:
    """Build the encoder that a round starts from."""
    if config.kind == "bag":
        return build_bag(config.pretrained)
    return build_transformer(config.pretrained, config.pooling, config.num_layers)


if __name__ == "__main__":
    main()
