"""Which settings cost least over several data sets: bases, learning rates, epochs, on validation.

The built-in sets, and five that are made (benchmarks.made_sets), without graphs, one seed, the
last epoch. Every run is kept, so the same command goes on. The table has a row per run; its regret
is by how many per cent its mean of P@1 and R@10 is below the best of its set. Rows named *mean* and
*worst* are over the sets. `ratio` is the smallest mean regret over that of the preset bag.

    python -m benchmarks.regret [--sets rdocs foldoc ...] [--into docs/evidence]
"""

import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.common import CACHE, finish, options
from benchmarks.graph_gain import dataset_of
from benchmarks.in_process import train
from benchmarks.made_sets import made
from benchmarks.tables import Found, kept, mean, write
from ramen_ray.bases import BaseName
from ramen_ray.config import WITHOUT_GRAPH, overlay
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, evaluate
from ramen_ray.presets import bag, with_base

STORE = CACHE / "regret"
VERSION = 1  # of what is kept; a change of what a run computes makes the runs anew
SETS = ["rdocs", "foldoc", "debian", "python", "emoji", "attacks", "few", "many"]
METRICS = ("P@1", "R@10")


class Setting(NamedTuple):
    """What a row trains with; ``rate`` is a factor of the base's learning rate in presets."""

    base: BaseName
    rate: float = 1.0
    epochs: int = 20


PRESET = Setting("in_batch")
SETTINGS = [
    *(PRESET, Setting("ance"), Setting("ngame"), Setting("depsl"), Setting("unidec")),
    *(Setting("in_batch", epochs=10), Setting("in_batch", epochs=40), Setting("unidec", epochs=10)),
    *(Setting("in_batch", 0.5), Setting("in_batch", 2.0)),
    *(Setting("unidec", 0.5), Setting("unidec", 2.0)),
]


def main() -> None:
    asked = options(__doc__, sets=SETS, into="")
    torch.set_num_threads(1)
    found = {one: {name: outcome(name, one) for name in asked.sets} for one in SETTINGS}
    best = {name: max(value(of[name]) for of in found.values()) for name in asked.sets}
    lines, means = [], {}
    for setting, of in found.items():
        regrets = {name: 100 * (1 - value(one) / best[name]) for name, one in of.items()}
        means[setting] = float(np.mean(list(regrets.values())))
        for name, one in of.items():
            figures = {**one, "regret": regrets[name]}
            lines.append(line(name, setting, figures))
        lines.append(line("mean", setting, {"regret": means[setting]}))
        lines.append(line("worst", setting, {"regret": max(regrets.values())}))
    write("regret", lines, asked.into)
    finish(min(means.values()) / means[PRESET], {})


def line(dataset: str, setting: Setting, figures: Mapping[str, float]) -> dict[str, str]:
    own = {name: str(of) for name, of in setting._asdict().items()}
    return {"dataset": dataset, **own, **{name: f"{of:.1f}" for name, of in figures.items()}}


def value(figures: Mapping[str, float]) -> float:
    return sum(figures[metric] for metric in METRICS) / len(METRICS)


def outcome(dataset: str, setting: Setting) -> dict[str, float]:
    """Return a setting's metrics on validation, in per cent, and the seconds of its training."""
    config = bag(made(dataset))
    config = with_base(overlay(config, WITHOUT_GRAPH), {"base.kind": setting.base})
    rate = config.optimizer.lr * setting.rate
    config = overlay(config, {"optimizer.lr": rate, "training.epochs": setting.epochs})

    def measure() -> Found:
        data = dataset_of(config.dataset, config.encoder)
        started = time.process_time()
        model = train(config, data)
        seconds = time.process_time() - started
        model.part = "both" if config.base.parts.heads == "classifier" else "encoder"
        topk = evaluate(model, data, "validation", Propensity())[1][0]
        metrics = GroundTruth.from_prepared(data, "validation", Propensity()).by_query(topk)
        return {"": {name: metrics[name] for name in METRICS}}, {"seconds": seconds}

    runs, figures = kept(STORE, [VERSION, dataset, *setting], measure)
    found = {name: 100 * mean(list(runs.values()), name) for name in METRICS}
    return {**found, "seconds": float(figures["seconds"])}


if __name__ == "__main__":
    main()
