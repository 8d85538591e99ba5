"""Copies of arrays on a device."""

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def staged(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return ``array`` as a CPU tensor from which a copy to ``device`` need not be waited for."""
    tensor = torch.from_numpy(array)
    # From memory that is not page-locked a GPU's driver copies large arrays only after all that
    # the GPU has been told to do before.
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy ``array`` to ``device`` without waiting for the copy to finish."""
    return staged(array, device).to(device, non_blocking=True)


def begin_copy(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the CPU; what is returned waits for that, and returns the copy."""
    if tensor.device.type == "cpu":
        return lambda: tensor
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> Tensor:
        copied.synchronize()
        return copy

    return wait
