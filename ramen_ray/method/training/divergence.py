"""Training that has left the numbers: found where losses are read, and before a model is kept."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ramen_ray.errors import UserError

_ADVICE = "lower optimizer.lr, or set optimizer.max_gradient_norm"


class DivergedError(UserError):
    """Losses or weights are no numbers any more, or infinite."""


def check_losses(losses: NDArray[np.float32], names: Sequence[str], last_step: int) -> None:
    """Check the losses (steps, terms) of the steps up to ``last_step`` (from 1).

    Raises:
        DivergedError: one is not finite.
    """
    bad = np.argwhere(~np.isfinite(losses))
    if len(bad):
        row, column = bad[0].tolist()
        step = last_step - len(losses) + 1 + row
        raise DivergedError(
            f"the loss {names[column]} is {losses[row, column]} in step {step}; {_ADVICE}"
        )


def check_weights(model: nn.Module, step: int) -> None:
    """Check a model after ``step`` steps.

    Raises:
        DivergedError: a weight is not finite.
    """
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise DivergedError(f"the weights {name} are not finite after step {step}; {_ADVICE}")
