"""Copies of arrays on a device."""

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
