"""The collectives of training and evaluation; without a process group there is one worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.nn import functional


def world() -> tuple[int, int]:
    """Return (rank, number of workers)."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


@contextmanager
def group_of_cpus() -> Iterator[distributed.ProcessGroup | None]:
    """Open a group in which a thread may exchange arrays amid the collectives of a step.

    All workers open it together. None if there is one worker.
    """
    if world()[1] == 1:
        yield None
        return
    group = distributed.new_group(backend="gloo")
    try:
        yield group
    finally:
        distributed.destroy_process_group(group)


def gather_rows(
    rows: NDArray[Any], device: torch.device, group: distributed.ProcessGroup | None = None
) -> NDArray[Any]:
    """Concatenate every worker's ``rows`` (b, ...) in rank order; all have the same shape.

    They go through ``device``, or, if there is one, through a :func:`group_of_cpus`.
    """
    if world()[1] == 1:
        return rows
    local = torch.from_numpy(np.ascontiguousarray(rows))
    local = local.to(device) if group is None else local
    return gather_tensors(local, group).cpu().numpy()


def gather_tensors(rows: Tensor, group: distributed.ProcessGroup | None = None) -> Tensor:
    """Concatenate ``rows`` as :func:`gather_rows` does; they stay on their device."""
    _, num_workers = world()
    if num_workers == 1:
        return rows
    if rows.dtype == torch.bool:  # which not all backends know
        return gather_tensors(rows.view(torch.uint8), group).view(torch.bool)
    gathered = rows.new_empty((num_workers * len(rows), *rows.shape[1:]))
    distributed.all_gather_single(gathered, rows, group=group)
    return gathered


def array_from_first_worker(array: NDArray[Any], device: torch.device) -> NDArray[Any]:
    """Return the first worker's ``array`` on every worker; all pass arrays of the same shape."""
    if world()[1] == 1:
        return array
    sent = torch.from_numpy(array).to(device)
    distributed.broadcast(sent, src=0)
    return sent.cpu().numpy()


def from_first_worker(number: int, device: torch.device) -> int:
    """Return the first worker's ``number`` on every worker."""
    return int(gather_rows(np.array([number]), device)[0])


def sum_over_workers(values: Tensor) -> Tensor:
    """Return the element-wise sum of every worker's ``values``."""
    if world()[1] > 1:
        distributed.all_reduce(values)
    return values


def dealt_rows() -> slice:
    """Return which rows of an array are this worker's: every n-th, so that all get like ones."""
    rank, num_workers = world()
    return slice(rank, None, num_workers)


def gather_dealt(rows: Tensor, num_rows: int) -> Tensor:
    """Put every worker's :func:`dealt_rows` (n, D) back in order (num_rows, D).

    Gradients flow back to the worker that has a row.
    """
    num_workers = world()[1]
    if num_workers == 1:
        return rows
    share = -(-num_rows // num_workers)
    padded = functional.pad(rows, (0, 0, 0, share - len(rows)))
    return _GatherWithGradient.apply(padded).transpose(0, 1).flatten(0, 1)[:num_rows]


class _GatherWithGradient(torch.autograd.Function):
    """All-gather of (n, D) to (workers, n, D); backward sums all workers' gradients of a row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return gather_tensors(rows.contiguous()).view(world()[1], *rows.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].contiguous()
        distributed.all_reduce(gradient)
        return gradient[world()[0]]


def gather_arrays(array: NDArray[Any], device: torch.device) -> list[NDArray[Any]]:
    """Return every worker's ``array`` (n, ...); the workers' n may differ."""
    _, num_workers = world()
    if num_workers == 1:
        return [array]
    lengths = gather_rows(np.array([len(array)]), device)
    padding = [(0, int(lengths.max()) - len(array))] + [(0, 0)] * (array.ndim - 1)
    padded = gather_rows(np.pad(array, padding), device)
    stacked = padded.reshape(num_workers, -1, *array.shape[1:])
    return [part[:length] for part, length in zip(stacked, lengths, strict=True)]


def own_range(num_rows: int) -> NDArray[np.int64]:
    """Return this worker's consecutive share of ``num_rows`` rows; shares differ by at most one."""
    rank, num_workers = world()
    return np.arange(rank * num_rows // num_workers, (rank + 1) * num_rows // num_workers)
