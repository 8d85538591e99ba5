"""What the anchor sets gain on foldoc: several choices of sets against the base (λ = 0).

The sides are the preset (links and categories), similar texts alone, and all three. They train in
this process, without Ray, with seeds 0, 1, 2 in turns; each query's R@10 and P@1 are compared with
the base's pairwise. Intervals are a bootstrap over queries and seeds. `ratio` is the preset's test
R@10 over the base's.

    python -m benchmarks.regularization [--seeds 3] [--sides base preset similar all]
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import NUM_THREADS, finish, prepared
from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.comparison import mean_over_seeds, paired_differences_over_seeds
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.metrics.judgement import Judgement, Propensity
from ramen_ray.method.metrics.ranking import PerQuery, ratio
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.training.components import (
    build_model,
    build_objective,
    build_sampler,
    build_state,
)
from ramen_ray.presets import foldoc

MEASURED = ("R@10", "P@1")
SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5", "R@10", "R@100")
SPLITS = ("validation", "test")
SIMILAR = 0.1


def main() -> None:
    """Train all sides with every seed and compare them with the base."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    preset = foldoc()
    given = preset.regularization.lambda_x
    lambda_x = {
        "base": {},
        "preset": given,
        "similar": {"similar": SIMILAR},
        "all": {**given, "similar": SIMILAR},
    }
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=list(lambda_x), choices=list(lambda_x))
    arguments = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    data = prepared(preset.dataset, preset.encoder)
    all_metrics: dict[str, list[dict[str, SplitMetrics]]] = {side: [] for side in arguments.sides}
    for seed in range(arguments.seeds):
        for side in arguments.sides:
            weights = {"regularization.lambda_x": lambda_x[side], "regularization.lambda_z": {}}
            metrics, seconds = train(overlay(preset, weights), data, seed)
            all_metrics[side].append(metrics)
            print(f"seed {seed} {side} ({seconds:.0f} s): {shown(metrics['test'])}", flush=True)
    figures = {
        split: {side: figures_of(all_metrics, side, split) for side in all_metrics}
        for split in SPLITS
    }
    test = figures["test"]
    finish(test["preset"]["R@10"] / test["base"]["R@10"], figures)


SplitMetrics = dict[str, PerQuery]


def figures_of(
    all_metrics: dict[str, list[dict[str, SplitMetrics]]], side: str, split: str
) -> dict[str, Any]:
    """Return a side's means over the seeds, and its differences to the base with intervals."""
    runs = {name: [run[split] for run in of] for name, of in all_metrics.items()}
    mean = mean_over_seeds(runs[side])
    means = {name: 100 * ratio(mean[name]) for name in SHOWN}
    if side == "base" or "base" not in all_metrics:
        return means
    differences = paired_differences_over_seeds(runs[side], runs["base"])
    return means | {
        f"{name} less base": [100 * bound for bound in differences[name]] for name in MEASURED
    }


def train(
    config: RunConfig, data: Prepared, seed: int, edges: Path | None = None
) -> tuple[dict[str, SplitMetrics], float]:
    """Train in batch, without Ray, on another graph if ``edges`` has one.

    Returns:
        The metrics by split, and the seconds that the steps took.
    """
    config = overlay(config, {"base.kind": "in_batch", "seed": seed})
    objective, model = build_objective(config), build_model(config.encoder)
    training_data = TrainingData.from_prepared(data, objective.regularizers, edges)
    sampler = build_sampler(config, data, training_data)
    state = build_state(config, model, model, sampler)
    started = time.monotonic()
    steps = sampler.steps_per_epoch * config.training.epochs
    list(train_steps(state, sampler, objective, steps))
    seconds = time.monotonic() - started
    if state.adaptive is not None:
        named = zip(objective.names, state.adaptive.weights.tolist(), strict=True)
        print({name: f"{weight:.2g}" for name, weight in named}, flush=True)
    return {split: _evaluate(model, data, split) for split in SPLITS}, seconds


def _evaluate(model: DualEncoder, data: Prepared, split: str) -> SplitMetrics:
    _, (ads, _) = evaluate(model, data, split, Propensity())
    return Judgement.from_prepared(data, split, Propensity()).by_query(ads)


def shown(metrics: SplitMetrics) -> dict[str, float]:
    """Return metrics in per cent."""
    return {name: round(100 * ratio(metrics[name]), 2) for name in SHOWN}


if __name__ == "__main__":
    main()
