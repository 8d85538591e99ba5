"""What it saves, and costs, to draw anchors only in every 2nd, 4th or 8th step.

Each preset trains without a graph (`base`) and with `regularization.every_steps` 1, 2, 4 and 8, in
batch, without walk and pruning, in this process, without Ray, with the same seeds. P@1 and R@10 of
the same queries are compared with the base's and with those of 1 (`less 1`), with intervals from a
bootstrap over queries and seeds; `seconds` is the training's median over that of the base in the
same seed. `ratio` is that of the first preset with 4, as the presets foldoc and debian have it.

    python -m benchmarks.every_steps [--seeds 3] [--presets foldoc foldoc-ramen debian-ramen]
"""

import argparse
from typing import Any

import numpy as np
import torch

from benchmarks.common import NUM_THREADS, finish, prepared
from benchmarks.regularization import MEASURED, SplitMetrics, figures_of, shown, train
from ramen_ray.config import RunConfig, overlay
from ramen_ray.method.metrics.comparison import paired_differences_over_seeds
from ramen_ray.presets import PRESETS

TRAINED = ("foldoc", "foldoc-ramen", "debian-ramen")
EVERY = (1, 2, 4, 8)
OF_PRESETS = "4"


def main() -> None:
    """Train all sides of all presets with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--presets", nargs="+", default=list(TRAINED), choices=TRAINED)
    arguments = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    figures = {name: measure(name, arguments.seeds) for name in arguments.presets}
    finish(figures[arguments.presets[0]][OF_PRESETS]["seconds"], figures)


def measure(name: str, seeds: int) -> dict[str, Any]:
    """Train all sides of a preset in turns; returns test metrics and times."""
    preset = PRESETS[name]()
    data = prepared(preset.dataset, preset.encoder)
    all_metrics: dict[str, list[dict[str, SplitMetrics]]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(seeds):
        for side, config in sides(preset).items():
            metrics, took = train(config, data, seed)
            all_metrics.setdefault(side, []).append(metrics)
            seconds.setdefault(side, []).append(took)
            print(f"{name} seed {seed} {side} ({took:.0f} s): {shown(metrics['test'])}", flush=True)
    figures = {side: figures_of(all_metrics, side, "test") for side in all_metrics}
    whole = [run["test"] for run in all_metrics["1"]]
    for side, figure in figures.items():
        figure["seconds"] = float(np.median(np.divide(seconds[side], seconds["base"])))
        if side not in ("base", "1"):
            ours = [run["test"] for run in all_metrics[side]]
            less = paired_differences_over_seeds(ours, whole)
            figure |= {f"{one} less 1": [100 * bound for bound in less[one]] for one in MEASURED}
    return figures


def sides(preset: RunConfig) -> dict[str, RunConfig]:
    """Return the configurations to train, by name."""
    weights: dict[str, Any] = {"regularization.lambda_x": {}, "regularization.lambda_z": {}}
    found = {"base": overlay(preset, weights)}
    return found | {
        str(every): overlay(preset, {"regularization.every_steps": every}) for every in EVERY
    }


if __name__ == "__main__":
    main()
