"""What the two graphs bring on foldoc: the preset against its own base (λ = 0), all else equal.

Both sides train in this process, without Ray, with seeds 0, 1, 2 in turns; each test query's R@10
and P@1 are compared pairwise. The interval is a bootstrap over queries of the mean over the seeds
(10,000 samples). `ratio` is the preset's R@10 over the base's.

    python -m benchmarks.regularization [--seeds 3]
"""

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import NUM_THREADS, finish, prepared
from ramen_ray.config import RegularizationConfig, RunConfig
from ramen_ray.data.prepared import Prepared
from ramen_ray.method.evaluation import Propensity, evaluate
from ramen_ray.method.metrics import find_hits, precision_at, recall_at
from ramen_ray.method.optimization import build_optimizer, build_schedule
from ramen_ray.method.training import Batches, Objective, TrainState, train_steps
from ramen_ray.orchestration.worker import build_encoder
from ramen_ray.presets import foldoc

MEASURED = ("R@10", "P@1")
SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5", "R@10", "R@100")


def main() -> None:
    """Train both sides with every seed and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(NUM_THREADS)
    preset = foldoc()
    data = prepared(preset.dataset, preset.encoder)
    sides = {
        "base": preset.model_copy(update={"regularization": RegularizationConfig()}),
        "preset": preset,
    }
    metrics: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    by_query: dict[str, list[NDArray[np.float64]]] = {side: [] for side in sides}
    for seed in seeds:
        for side, config in sides.items():
            started = time.monotonic()
            found, values = _train(config, data, seed)
            metrics[side].append({name: 100 * found[name] for name in SHOWN})
            by_query[side].append(values)
            seconds = time.monotonic() - started
            print(f"seed {seed} {side} ({seconds:.0f} s): {metrics[side][-1]}", flush=True)
    means = {
        side: {name: float(np.mean([row[name] for row in rows])) for name in SHOWN}
        for side, rows in metrics.items()
    }
    difference = np.mean(by_query["preset"], axis=0) - np.mean(by_query["base"], axis=0)
    comparison = {
        name: {
            "difference": 100 * difference[row].mean(),
            "interval_95": _interval(difference[row]),
        }
        for row, name in enumerate(MEASURED)
    }
    finish(
        means["preset"]["R@10"] / means["base"]["R@10"], {**means, "preset_less_base": comparison}
    )


def _train(
    config: RunConfig, data: Prepared, seed: int
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Train without Ray; returns test metrics and each query's (2, queries) R@10 and P@1."""
    weights, loss, optimizer = config.regularization, config.loss, config.optimizer
    objective = Objective(
        loss.margin,
        loss.num_hard_negatives,
        loss.softmax_weighting,
        weights.lambda_x,
        weights.lambda_z,
    )
    encoder = build_encoder(config.encoder)
    size = config.training.global_batch_size
    batches = Batches.of(data, objective.anchor_sets, size, seed)
    steps = batches.steps_per_epoch * config.training.epochs
    built = build_optimizer(encoder, optimizer.lr, optimizer.weight_decay, optimizer.embedding_lr)
    schedule = build_schedule(built, round(optimizer.warmup_fraction * steps), steps)
    list(train_steps(TrainState(encoder, built, schedule), batches, objective, steps))
    metrics, topk = evaluate(encoder, data, "test", Propensity())
    truth = data.clicks["test"]
    hits = find_hits(topk[0], truth)
    return metrics, np.stack([recall_at(hits, np.diff(truth.indptr), 10), precision_at(hits, 1)])


def _interval(differences: NDArray[np.float64], samples: int = 10_000) -> list[float]:
    draw = np.random.default_rng(0)
    count = len(differences)
    means = [differences[draw.integers(0, count, count)].mean() for _ in range(samples)]
    return [float(100 * bound) for bound in np.quantile(means, [0.025, 0.975])]


if __name__ == "__main__":
    main()
