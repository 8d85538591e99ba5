"""How arrays move: between workers (without a process group there is one), and to a device."""

from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.nn import functional

T = TypeVar("T")
PATIENCE = timedelta(hours=6)
"""With what the first worker does alone, such as clusters of 100M queries. If a worker dies, the
others are told at once."""


def world() -> tuple[int, int]:
    """Return (rank, number of workers)."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def is_first_worker() -> bool:
    """Say whether this worker does what one must do for all."""
    return world()[0] == 0


def group_of_cpus() -> distributed.ProcessGroup | None:
    """Return the group by which arrays in memory go from worker to worker; None for one worker.

    The first call must be made by all workers together.
    """
    if world()[1] == 1:
        return None
    workers = distributed.group.WORLD
    if workers not in _groups_of_cpus:
        _groups_of_cpus[workers] = distributed.new_group(timeout=PATIENCE, backend="gloo")
    return _groups_of_cpus[workers]


_groups_of_cpus: MutableMapping[Any, distributed.ProcessGroup] = WeakKeyDictionary()
"""One for each group of workers that this process has been in."""


def gather_tensors(rows: Tensor, group: distributed.ProcessGroup | None = None) -> Tensor:
    """Concatenate every worker's ``rows`` (b, ...) in rank order; all have the same shape."""
    _, num_workers = world()
    if num_workers == 1:
        return rows
    if rows.dtype == torch.bool:  # which not all backends know
        return gather_tensors(rows.view(torch.uint8), group).view(torch.bool)
    gathered = rows.new_empty((num_workers * len(rows), *rows.shape[1:]))
    distributed.all_gather_single(gathered, rows, group=group)
    return gathered


def gather_own(rows: Tensor, num_rows: int) -> Tensor:
    """Put the workers' :func:`own_range` of ``num_rows`` rows together, in order."""
    _, num_workers = world()
    most = -(-num_rows // num_workers)
    padding = rows.new_zeros((most - len(rows), *rows.shape[1:]))
    group = None if rows.is_cuda else group_of_cpus()
    gathered = gather_tensors(torch.cat([rows, padding]), group)
    if num_rows == num_workers * most:
        return gathered
    shares = [own_range(num_rows, rank) for rank in range(num_workers)]
    kept = [rank * most + share - share[0] for rank, share in enumerate(shares)]
    return gathered[to_device(np.concatenate(kept), rows.device)]


def array_from_first_worker(array: NDArray[Any]) -> NDArray[Any]:
    """Copy the first worker's ``array`` into those of the others, of the same shape; return it."""
    if world()[1] > 1:
        array = np.ascontiguousarray(array)
        distributed.broadcast(torch.from_numpy(array), src=0, group=group_of_cpus())
    return array


def from_first_worker(value: T) -> T:
    """Return the first worker's ``value``, small and plain, on every worker."""
    if world()[1] == 1:
        return value
    values = [value]
    distributed.broadcast_object_list(values, src=0, group=group_of_cpus())
    return values[0]


def sum_over_workers(values: Tensor) -> Tensor:
    """Return the element-wise sum of every worker's ``values``."""
    if world()[1] > 1:
        distributed.all_reduce(values)
    return values


def dealt_rows() -> slice:
    """Return which rows of an array are this worker's: every n-th, so that shares are alike."""
    rank, num_workers = world()
    return slice(rank, None, num_workers)


def gather_dealt(rows: Tensor, num_rows: int) -> Tensor:
    """Put all workers' :func:`dealt_rows` (n, D) back in order (num_rows, D), with gradients."""
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


def gather_arrays(array: NDArray[Any]) -> list[NDArray[Any]]:
    """Return every worker's ``array`` (n, ...); the workers' n may differ."""
    _, num_workers = world()
    if num_workers == 1:
        return [array]
    group = group_of_cpus()
    lengths = gather_tensors(torch.tensor([len(array)]), group).tolist()
    padding = [(0, max(lengths) - len(array))] + [(0, 0)] * (array.ndim - 1)
    padded = gather_tensors(torch.from_numpy(np.pad(array, padding)), group).numpy()
    stacked = padded.reshape(num_workers, -1, *array.shape[1:])
    return [part[:length] for part, length in zip(stacked, lengths, strict=True)]


def own_range(num_rows: int, rank: int | None = None) -> NDArray[np.int64]:
    """Return a worker's consecutive share of ``num_rows`` rows; shares differ by at most one.

    ``rank`` None is this worker's.
    """
    own_rank, num_workers = world()
    rank = own_rank if rank is None else rank
    return np.arange(rank * num_rows // num_workers, (rank + 1) * num_rows // num_workers)


def staged(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return ``array`` as a CPU tensor from which a copy to ``device`` need not be waited for."""
    tensor = torch.from_numpy(array)
    # From memory that is not page-locked a GPU's driver copies large arrays only after all that
    # the GPU has been told to do before.
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy ``array`` to ``device`` without waiting for the copy to finish."""
    return staged(array, device).to(device, non_blocking=True)
