"""Gains and losses of fixed and adaptive λ on graphs that help, that hurt, and that are half noise.

Three scenes: `foldoc` (the bag and the λ of the preset foldoc-ramen), `foldoc_noise` (half of its
edges lead to the anchors of other edges, drawn at random) and `debian` (a naive graph: `depends`
and `tags`, all at 0.1). In each, base (λ = 0), fixed and adaptive λ train in batch, in this
process, without Ray, with the same seeds; per query, R@10 and P@1 are compared with the base's (see
`benchmarks.regularization`). `ratio` is the smallest test P@1 of adaptive λ over the base's.

    python -m benchmarks.adaptive_lambda [--seeds 3] [--scenes foldoc foldoc_noise debian]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import NUM_THREADS, finish, prepared
from benchmarks.regularization import SPLITS, SplitMetrics, figures_of, shown, train
from ramen_ray.config import RegularizationConfig, RunConfig
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.presets import debian, foldoc_ramen

NOISE = 0.5
DEBIAN = {"depends": 0.1, "tags": 0.1}
SCENES = ("foldoc", "foldoc_noise", "debian")


def main() -> None:
    """Train all sides of all scenes with every seed and compare them with their base."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=SCENES)
    arguments = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    figures = {scene: _measure(scene, arguments.seeds) for scene in arguments.scenes}
    tests = [of_scene["test"] for of_scene in figures.values()]
    finish(min(test["adaptive"]["P@1"] / test["base"]["P@1"] for test in tests), figures)


def _measure(scene: str, seeds: int) -> dict[str, Any]:
    preset = debian() if scene == "debian" else foldoc_ramen()
    data = prepared(preset.dataset, preset.encoder)
    all_metrics: dict[str, list[dict[str, SplitMetrics]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        edges = _with_noise(data, Path(folder)) if scene == "foldoc_noise" else None
        for seed in range(seeds):
            for side, config in _sides(preset).items():
                metrics, seconds = train(config, data, seed, edges)
                all_metrics.setdefault(side, []).append(metrics)
                printed = {split: shown(metrics[split]) for split in SPLITS}
                print(f"{scene} seed {seed} {side} ({seconds:.0f} s): {printed}", flush=True)
    return {
        split: {side: figures_of(all_metrics, side, split) for side in all_metrics}
        for split in SPLITS
    }


def _sides(preset: RunConfig) -> dict[str, RunConfig]:
    given = preset.regularization
    if preset.dataset.endswith("debian"):
        given = RegularizationConfig(lambda_x=DEBIAN, lambda_z=DEBIAN)
    sides = {
        "base": RegularizationConfig(),
        "fixed": given,
        "adaptive": given.model_copy(update={"adaptive": True}),
    }
    return {
        side: preset.model_copy(update={"regularization": weights})
        for side, weights in sides.items()
    }


def _with_noise(data: Prepared, folder: Path) -> Path:
    """Write the data's graphs with a share of edges moved to the anchor of a random other edge."""
    draw = np.random.default_rng(0)
    for name in data.anchor_sets:
        for side in ("query", "ad"):
            edges = data.edges(name, side)
            anchors = np.array(edges.indices, dtype=np.int64)
            moved = draw.random(len(anchors)) < NOISE
            anchors[moved] = draw.choice(edges.indices, moved.sum())
            rows = np.repeat(np.arange(edges.num_rows), np.diff(edges.indptr))
            pairs = np.unique(np.stack([rows, anchors]), axis=1)
            Csr.from_pairs(*pairs, edges.num_rows).save(folder / name / side)
    return folder


if __name__ == "__main__":
    main()
