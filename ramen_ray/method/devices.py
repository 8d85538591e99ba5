"""Copies of arrays on a device."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy ``array`` to ``device`` without waiting for the copy to finish."""
    return torch.from_numpy(array).to(device, non_blocking=True)
