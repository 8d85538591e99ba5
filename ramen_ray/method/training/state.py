"""What a run changes as it goes, which checkpoints have beside the model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ramen_ray.errors import UserError
from ramen_ray.method.sampling.batches import DrawState
from ramen_ray.method.sampling.step_part import StepPart

STATE_FILE = "state.pt"


class CheckpointError(UserError):
    """A folder is not a checkpoint, or is not one of this run."""


@dataclass
class TrainState:
    """What a run changes as it goes."""

    model: nn.Module  # the model that is trained, or its wrapper for several workers
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    draws: DrawState  # what batches are drawn from now
    step: int = 0  # number of steps done; all random draws depend on it
    parts: Sequence[StepPart] = ()  # what extends the steps, in their order
    # (terms,) the weights of the last step's losses
    weights: Tensor = field(default_factory=lambda: torch.empty(0))

    def advance(self) -> None:
        """Let the parts prepare for the next steps."""
        for part in self.parts:
            self.draws = part.advance(self.step, self.draws)


def save_checkpoint(folder: Path, state: TrainState, progress: dict[str, Any]) -> None:
    """Write, on the first worker, the training state and ``progress`` (plain values)."""
    # All draws are functions of the seed and the step: random generators have no state to keep.
    content = {
        "optimizer": state.optimizer.state_dict(),
        "schedule": state.schedule.state_dict(),
        "step": state.step,
        "parts": {part.name: part.save(folder) for part in state.parts},
        "progress": progress,  # says which graphs and shortlists were in use
    }
    torch.save(content, folder / STATE_FILE)


def save_shares(folder: Path, state: TrainState) -> None:
    """Write what this worker, which is not the first, holds of shared parts into ``folder``."""
    for part in state.parts:
        if part.is_shared:
            part.save(folder)


def restore_checkpoint(folder: Path, state: TrainState) -> dict[str, Any]:
    """Restore optimiser, schedule, step and parts, the model being loaded; returns ``progress``."""
    file = folder / STATE_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {STATE_FILE}")
    content = torch.load(file, weights_only=True, map_location="cpu")
    state.optimizer.load_state_dict(content["optimizer"])
    state.schedule.load_state_dict(content["schedule"])
    state.step = content["step"]
    for part in state.parts:
        state.draws = part.restore(folder, content["parts"][part.name], state.draws)
    progress: dict[str, Any] = content["progress"]
    return progress
