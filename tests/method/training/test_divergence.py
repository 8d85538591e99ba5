"""Training that diverges is stopped at the step that did, with what to change."""

import numpy as np
import pytest
import torch

from ramen_ray.method.training.divergence import DivergedError, check_losses, check_weights


def test_the_first_step_without_finite_losses_is_named():
    losses = np.ones((5, 2), dtype=np.float32)
    check_losses(losses, ["task", "R_x/links"], 50)
    losses[2, 1] = np.nan
    losses[4, 0] = np.inf
    with pytest.raises(DivergedError, match=r"loss R_x/links is nan in step 48; lower optimizer"):
        check_losses(losses, ["task", "R_x/links"], 50)


def test_weights_are_checked_before_they_are_kept():
    model = torch.nn.Linear(2, 2)
    check_weights(model, 3)
    with torch.no_grad():
        model.bias[1] = torch.inf
    with pytest.raises(DivergedError, match=r"weights bias are not finite after step 3; lower"):
        check_weights(model, 3)
