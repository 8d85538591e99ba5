"""Batches made ahead: while a GPU computes a step, a thread makes what the next one needs."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import TypeVar

import torch

from ramen_ray.method.distributed import group_of_cpus
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.step_inputs import StepInputs

T = TypeVar("T")


def prefetched(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield ``items`` in order; a thread makes the next one while the caller has the last.

    The thread ends with the iteration; close the iterator if it may be left early.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetched") as thread:
        coming = thread.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, source, end)
            yield item  # type: ignore[misc]


def step_inputs(
    sampler: Sampler,
    draws: DrawState,
    objective: Objective,
    steps: range,
    device: torch.device,
    prefetch: bool | None = None,
) -> Generator[StepInputs, None, None]:
    """Yield what each of ``steps`` computes on ``device``; close it if it may be left early.

    ``prefetch`` makes the next one on a thread, which changes none of them; None to do so for a GPU
    only, as a CPU is busy with the step itself.
    """
    ahead = device.type == "cuda" if prefetch is None else prefetch
    # On a thread, workers exchange what they drew apart from the collectives of the step.
    with group_of_cpus() if ahead else nullcontext() as group:
        drawn = (sampler.draw(step, draws, objective.regularizers_at(step)) for step in steps)
        inputs = (StepInputs.from_local(sampler.data, local, device, group) for local in drawn)
        if ahead:
            with closing(prefetched(inputs)) as made:
                yield from made
        else:
            yield from inputs
