"""What a softmax loss and classifiers cost a training step: depsl and unidec over ance.

Trainings of the same encoder on the same data and batches alternate in one process, with shortlists
and clusters from the untrained encoder, two CPU threads, fp32, the first steps of each round not
timed. `ratio` is a step of unidec over one of ance. The pool of ads, and how many of them a query
led to, are means over 20 steps. The memory of the classifiers is measured for 200,000 ads of 384
dimensions, vectors and moments, and computed for 1.3 million.

    python -m benchmarks.unidec_step [--preset bag-ramen] [--rounds 5] [--seconds 5]
"""

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, prepared
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.classifiers import Classifiers
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.retrieval.shortlists import open_shortlists, write_shortlists
from ramen_ray.method.sampling.clustering import balanced_clusters
from ramen_ray.method.sampling.curriculum import Curriculum
from ramen_ray.method.sampling.pool_figures import pool_figures
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.optimization import build_schedule
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.runs.components import (
    build_classifiers,
    build_model,
    build_objective,
    build_sampler,
    build_state,
)
from ramen_ray.presets import PRESETS

WARMUP_STEPS = 4
COUNTED_STEPS = 20
BASES = ("ance", "depsl", "unidec")
MEASURED_ADS, COMPUTED_ADS, DIM = 200_000, 1_300_000, 384
COPIES = 3  # the vectors and two moments


def main() -> None:
    """Alternate the bases, then measure the memory of classifiers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="bag-ramen")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each base in a round")
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    preset = overlay(PRESETS[options.preset]("foldoc"), WITHOUT_GRAPH)
    data = prepared(str(ROOT / preset.dataset), preset.encoder)
    sides = {
        base: partial(measure, overlay(preset, {"base.kind": base}), data, options.seconds)
        for base in BASES
    }
    found = {base: medians(rows) for base, rows in alternate(options.rounds, sides).items()}
    seconds = {base: row["seconds_per_step"] for base, row in found.items()}
    megabytes = {
        "classifier_mb_measured_200k": measured_megabytes(MEASURED_ADS, DIM),
        "classifier_mb_computed_200k": COPIES * MEASURED_ADS * DIM * 4 / 1e6,
        "classifier_mb_computed_1300k": COPIES * COMPUTED_ADS * DIM * 4 / 1e6,
    }
    figures = {f"{base}_{what}": value for base in BASES for what, value in found[base].items()}
    finish(
        seconds["unidec"] / seconds["ance"],
        {"depsl_ratio": seconds["depsl"] / seconds["ance"], **figures, **megabytes},
    )


def measure(config: RunConfig, data: Prepared, seconds: float) -> dict[str, float]:
    """Train for some seconds from a new encoder; returns seconds per step and the pool's size."""
    model = build_model(config)
    if model.classifier_head is not None:
        model.classifiers = build_classifiers(config, model, data)
    keep_tokens(model.encoder, data.occurring_tokens)
    objective = build_objective(config)
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sampler = build_sampler(config, data, training_data)
    state = build_state(config, model, model, sampler)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shortlists.npy"
        write_shortlists(model, data, config.base.parts.shortlist_size, file)
        shortlists = np.array(open_shortlists(file))
    clusters = None
    if config.base.parts.order != "random":
        queries = model.embed_texts(data.queries["train"], training_data.clicked_rows)
        clusters = balanced_clusters(torch.from_numpy(queries), sampler.batch_size, config.seed)
    state.parts = [one for one in state.parts if not isinstance(one, Curriculum)]  # clusters stay
    state.sources = replace(state.sources, shortlists=shortlists, clusters=clusters)
    list(train_steps(state, sampler, objective, WARMUP_STEPS))
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        list(train_steps(state, sampler, objective, state.step + 4))
    elapsed = time.perf_counter() - started
    pools = [
        pool_figures(sampler.draw(step, state.sources, []), training_data.clicks)
        for step in range(COUNTED_STEPS)
    ]
    return {
        "seconds_per_step": elapsed / (state.step - WARMUP_STEPS),
        **{f"pool_{name}": float(np.mean([one[name] for one in pools])) for name in pools[0]},
    }


def measured_megabytes(num_ads: int, dim: int) -> float:
    """Return how much memory a table of classifiers and one update of it take."""
    before = psutil.Process().memory_info().rss
    vectors = torch.ones(num_ads, dim)
    classifiers = Classifiers(vectors, 0, np.ones(num_ads, dtype=bool))
    schedule: Any = partial(build_schedule, warmup_steps=0, total_steps=2)
    training = ClassifierTraining(classifiers, 1e-3, schedule)
    training.update(np.arange(100), torch.ones(100, dim))
    for moment in training.optimizer.state_dict()["state"][0].values():
        if isinstance(moment, torch.Tensor):
            moment += 0  # have the system hand the memory out
    return (psutil.Process().memory_info().rss - before) / 1e6


if __name__ == "__main__":
    main()
