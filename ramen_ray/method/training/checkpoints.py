"""A checkpoint: the encoder as a deployable folder, and the other training state beside it."""

from pathlib import Path
from typing import Any

import torch

from ramen_ray.errors import UserError
from ramen_ray.method.model.encoder import Encoder
from ramen_ray.method.training.step import TrainState

ENCODER_FOLDER = "encoder"
STATE_FILE = "state.pt"


class CheckpointError(UserError):
    """A folder is not a checkpoint, or not one of this run."""


def save_checkpoint(
    folder: Path, encoder: Encoder, state: TrainState, max_length: int, progress: dict[str, Any]
) -> None:
    """Write encoder, training state and ``progress`` (plain values) into ``folder``.

    All draws are functions of the seed and the step, so the step also is the generators' state.
    """
    encoder.save(folder / ENCODER_FOLDER, max_length)
    content = {
        "optimizer": state.optimizer.state_dict(),
        "schedule": state.schedule.state_dict(),
        "step": state.step,
        "adaptation": state.adaptation.state_dict() if state.adaptation else None,
        "progress": progress,
    }
    torch.save(content, folder / STATE_FILE)


def read_state(folder: Path) -> dict[str, Any]:
    """Read what :func:`save_checkpoint` put beside the encoder, without unpickling code.

    Raises:
        CheckpointError: the folder holds no training state.
    """
    file = folder / STATE_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {STATE_FILE}")
    content: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    return content


def restore_state(state: TrainState, content: dict[str, Any]) -> None:
    """Put optimiser, schedule, step and weights back; the encoder was loaded from its folder."""
    state.optimizer.load_state_dict(content["optimizer"])
    state.schedule.load_state_dict(content["schedule"])
    state.step = content["step"]
    if state.adaptation is not None:
        state.adaptation.load_state_dict(content["adaptation"])
