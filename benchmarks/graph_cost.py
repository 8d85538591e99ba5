"""What the graph regularisers cost a training step.

Trainings of the same encoder alternate in one process: without a graph (`base`), with the weights
of the preset (`preset`), and with the same weight for all its anchor sets on both sides
(`both_sides`); with anchors in each step, and in each fourth one (`_4`), as the presets have it.
Each trains on random batches (`in_batch`) and with one hard negative a query, from the untrained
encoder's shortlists (`ance`). Batches are the preset's, two CPU threads, fp32, the first steps of
each round not timed. foldoc trains all-MiniLM cut to two layers and the bag of embeddings, debian
the bag. `ratio` is seconds per step of `ance` with the preset's graph in each fourth step over
`ance` without, for the first encoder. The distinct texts and tokens per step are printed too, as
they determine the cost of a step.

    python -m benchmarks.graph_cost [--preset foldoc] [--rounds 3] [--steps 16]
"""

import argparse
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.utils.logging import set_verbosity_error

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, prepared
from ramen_ray.config import EncoderConfig, RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Objective, ramen_objective
from ramen_ray.method.retrieval.shortlists import open_shortlists, write_shortlists
from ramen_ray.method.sampling.batches import Sampler, Sources
from ramen_ray.method.sampling.encoded import DistinctTexts
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import TrainState, train_steps
from ramen_ray.orchestration.training.components import build_model
from ramen_ray.presets import MINILM, debian, foldoc

WARMUP_STEPS = 4
BAG_STEPS_PER_STEP = 10  # a step of the bag is much shorter than the transformer's
LEARNING_RATE = 1e-4
SHORTLIST_SIZE = 100
TRANSFORMER = EncoderConfig(pretrained=MINILM, num_layers=2)
BAG = EncoderConfig(kind="bag", pretrained=MINILM)
MEASURED = {"foldoc": (foldoc(), [TRANSFORMER, BAG]), "debian": (debian(), [BAG])}
BASES = ("in_batch", "ance")


def main() -> None:
    """Measure the encoders of the preset, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="foldoc", choices=list(MEASURED))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16, help="timed steps of a round")
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    set_verbosity_error()  # it would report the layers that are cut off
    preset, encoders = MEASURED[options.preset]
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for encoder in encoders:
        print(f"{encoder.kind}:")
        steps = options.steps * (BAG_STEPS_PER_STEP if encoder == BAG else 1)
        figures[encoder.kind] = compare(preset, encoder, options.rounds, steps)
    finish(figures[encoders[0].kind]["ance"]["preset_4_ratio"], figures)


def objectives(preset: RunConfig) -> dict[str, Objective]:
    """Return what is optimised, by name."""
    one_side = preset.regularization.lambda_x, preset.regularization.lambda_z
    weights = {name: 0.1 for name, weight in one_side[0].items() if weight}
    both_sides = weights, weights
    loss = TripletLoss(0.3, 10)
    return {
        "base": ramen_objective(loss, {}, {}),
        "preset": ramen_objective(loss, *one_side),
        "preset_4": ramen_objective(loss, *one_side, 4),
        "both_sides": ramen_objective(loss, *both_sides),
        "both_sides_4": ramen_objective(loss, *both_sides, 4),
    }


def compare(
    preset: RunConfig, encoder: EncoderConfig, rounds: int, steps: int
) -> dict[str, dict[str, float]]:
    """Alternate all trainings of an encoder; returns medians and ratios to the base, by base."""
    data = prepared(str(ROOT / preset.dataset), encoder)
    shortlists = {"in_batch": None, "ance": untrained_shortlists(data, encoder)}
    weights, size = objectives(preset), preset.training.global_batch_size
    sides = {
        f"{base} {name}": partial(
            measure, data, encoder, shortlists[base], weights[name], size, steps
        )
        for base, name in product(BASES, weights)
    }
    found = {side: medians(rows) for side, rows in alternate(rounds, sides).items()}
    figures: dict[str, dict[str, float]] = {base: {} for base in BASES}
    for base, name in product(BASES, weights):
        here, plain = found[f"{base} {name}"], found[f"{base} base"]
        ratio = here["seconds_per_step"] / plain["seconds_per_step"]
        token_ratio = here["tokens_per_step"] / plain["tokens_per_step"]
        row = here if name == "base" else {"ratio": ratio, "token_ratio": token_ratio, **here}
        figures[base] |= {f"{name}_{what}": value for what, value in row.items()}
    return figures


def untrained_shortlists(data: Prepared, config: EncoderConfig) -> NDArray[np.int32]:
    """Make shortlists of all queries with the encoder that training starts from."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shortlists.npy"
        write_shortlists(build_model(config), data, SHORTLIST_SIZE, file)
        return np.array(open_shortlists(file))


def measure(
    data: Prepared,
    config: EncoderConfig,
    shortlists: NDArray[np.int32] | None,
    objective: Objective,
    batch_size: int,
    steps: int,
) -> dict[str, float]:
    """Train one round from a new encoder; returns seconds, texts and tokens per step."""
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sources = Sources(training_data.graphs, shortlists=shortlists)
    num_hard_negatives = 0 if shortlists is None else 1
    sampler = Sampler(training_data, batch_size, 0, num_hard_negatives=num_hard_negatives)
    model = build_model(config)
    optimizer = build_optimizer(model.encoder, LEARNING_RATE, weight_decay=0.01)
    stop = WARMUP_STEPS + steps
    state = TrainState(model, optimizer, build_schedule(optimizer, 0, stop), sources)
    ends = [time.perf_counter() for _ in train_steps(state, sampler, objective, stop)]
    batches = [
        sampler.draw(step, sources, objective.regularizers_at(step))
        for step in range(WARMUP_STEPS, stop)
    ]
    texts = [DistinctTexts.from_batch(batch, training_data.tables) for batch in batches]
    return {
        "seconds_per_step": (ends[-1] - ends[WARMUP_STEPS - 1]) / steps,
        "texts_per_step": float(np.mean([len(step.lengths) for step in texts])),
        "tokens_per_step": float(np.mean([step.lengths.sum() for step in texts])),
    }


if __name__ == "__main__":
    main()
