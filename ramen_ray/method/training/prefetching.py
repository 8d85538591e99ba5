"""Batches made ahead: while a GPU computes a step, a thread makes what the next one needs."""

from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ramen_ray.method.distributed import group_of_cpus
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.step_part import StepPart

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


def ahead_for(device: torch.device, items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Return ``items``, :func:`prefetched` for a GPU; a CPU is busy with the step itself."""
    if device.type != "cuda":
        return items
    group_of_cpus()  # all workers make it now, as the thread needs it amid the steps' collectives
    return prefetched(items)


def step_inputs(
    sampler: Sampler,
    draws: DrawState,
    objective: Objective,
    steps: range,
    device: torch.device,
    parts: Sequence[StepPart] = (),
) -> Generator[StepInputs, None, None]:
    """Yield what each of ``steps`` computes on ``device``, prepared by the ``parts``."""
    for step in steps:
        local = sampler.draw(step, draws, objective.regularizers_at(step))
        inputs = StepInputs.from_local(sampler.data, local, device)
        for part in parts:
            inputs = part.prepare(inputs)
        yield inputs
