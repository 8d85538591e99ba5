"""What the processor does for a training step, in ms by part; needs neither GPU, Ray nor MLflow.

Batches of 4,096 queries with a hard negative each, four regularisers and adaptive λ, on generated
data with as many edges a node as LF-WikiSeeAlsoTitles-320K: once for one worker of eight, once for
a worker alone. A thread prepares a step while a GPU computes the one before; `pack` is done by the
thread that trains. Each figure is the least of all rounds. `ratio` is the larger of both
preparations over its goal: 30 ms of eight, 60 ms alone.

    nice -n 10 python -m benchmarks.host_step [--rounds 5] [--queries 300000]
"""

import cProfile
import pstats
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.common import alternate, finish, options
from benchmarks.gpu_step import made_data
from ramen_ray.method.model.texts import packed
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.sampling.batches import Batch, Sampler, SamplingSources
from ramen_ray.method.sampling.step_inputs import StepInputs

BATCH_SIZE, GOALS_MS, STEPS = 4096, {8: 30.0, 1: 60.0}, 4
DEGREES = {"hyper_link": {"query": 39, "ad": 8}, "category": {"query": 5, "ad": 5}}
WEIGHTS = dict.fromkeys(DEGREES, 1.0)
OBJECTIVE = ramen_objective(TripletLoss(0.3, 10), WEIGHTS, WEIGHTS)
CPU = torch.device("cpu")
PARTS = {
    "draw": "draw",
    "from_batch": "texts",
    "_pool": "pools",
    "links": "links",
    "gather_tokens": "tokens",
    "prepare": "adaptive",
}
"""Functions of the step's inputs, and what they are called here."""


def main() -> None:
    asked = options(__doc__, rounds=5, queries=300_000)
    torch.set_num_threads(1)
    degrees = {one: DEGREES[one.anchor_set][one.side] for one in OBJECTIVE.regularizers}
    data = made_data(asked.queries, 2, degrees)
    sampler = Sampler(data, BATCH_SIZE, seed=0, num_hard_negatives=1)
    hard = np.random.default_rng(1).integers(0, asked.queries, (asked.queries, 100), np.int32)
    sources = SamplingSources(data.graphs, shortlists=hard)
    sides = {f"of_{count}": partial(_measured, sampler, sources, count) for count in GOALS_MS}
    figures = {
        side: {name: min(row[name] for row in rows) for name in rows[0]}
        for side, rows in alternate(asked.rounds, sides).items()
    }
    finish(max(figures[f"of_{n}"]["prepared"] / goal for n, goal in GOALS_MS.items()), figures)


def _measured(sampler: Sampler, sources: SamplingSources, num_workers: int) -> dict[str, float]:
    """Return ms a step of one worker of ``num_workers``, whose others' draws are made before."""
    adaptive = AdaptiveWeights(OBJECTIVE, 0.02, sampler.steps_per_epoch, CPU)
    whole = [sampler.draw(step, sources, OBJECTIVE.regularizers) for step in range(STEPS)]
    profile, prepared, packing, own = cProfile.Profile(time.thread_time), 0.0, 0.0, replace(sampler)
    for step in range(STEPS):
        with _as_one_of(num_workers, whole[step]):
            if step == 0:
                own.draw(step, sources, OBJECTIVE.regularizers)  # what is kept for an epoch
            started = time.thread_time()
            profile.enable()
            local = own.draw(step, sources, OBJECTIVE.regularizers)
            inputs = adaptive.prepare(
                StepInputs.from_local(sampler.data, local, sampler.batch_size, CPU)
            )
            profile.disable()
            prepared += time.thread_time() - started
        started = time.thread_time()
        list(packed(inputs.tokens))
        packing += time.thread_time() - started
    found = dict.fromkeys(PARTS.values(), 0.0)
    for (_, _, name), (*_, spent, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if name in PARTS:
            found[PARTS[name]] += spent
    found |= {"prepared": prepared, "pack": packing}
    return {name: 1000 * seconds / STEPS for name, seconds in found.items()}


@contextmanager
def _as_one_of(num_workers: int, whole: Batch) -> Iterator[None]:
    """Let this process be the first of some workers, which have drawn ``whole`` together."""

    def world() -> tuple[int, int]:
        return 0, num_workers

    def gathered(batch: Batch, batch_size: int) -> Batch:
        return whole

    modules = ("distributed", "sampling.batches")
    with ExitStack() as stack:
        for name in modules:
            stack.enter_context(patch(f"ramen_ray.method.{name}.world", world))
        stack.enter_context(patch.object(Batch, "gathered", gathered))
        yield


if __name__ == "__main__":
    main()
