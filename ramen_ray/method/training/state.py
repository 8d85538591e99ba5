"""What a run changes as it goes: its optimiser and schedule, and what checkpoints keep."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ramen_ray.errors import UserError
from ramen_ray.method.model.encoder import Encoder
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.encoded import StepPart

STATE_FILE = "state.pt"


class CheckpointError(UserError):
    """A folder is not a checkpoint, or is not one of this run."""


@dataclass
class TrainState:
    """What a run changes as it goes."""

    model: nn.Module  # the model that is trained, or its wrapper for several workers
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    sources: SamplingSources  # what batches are drawn from now
    step: int = 0  # number of steps done; all random draws depend on it
    parts: Sequence[StepPart] = ()  # what extends the steps, in their order
    # (terms,) the weights of the last step's losses
    weights: Tensor = field(default_factory=lambda: torch.empty(0))

    def prepare_next_steps(self) -> None:
        """Let the parts prepare for the next steps."""
        for part in self.parts:
            self.sources = part.prepare_next_steps(self.step, self.sources)


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
    """Write this worker's shares into ``folder``, to which the first worker writes the rest."""
    for part in state.parts:
        if part.is_shared:
            part.save(folder)


def restore_checkpoint(folder: Path, state: TrainState) -> dict[str, Any]:
    """Restore all but the model, which must be loaded already; return the saved ``progress``."""
    file = folder / STATE_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {STATE_FILE}")
    content = torch.load(file, weights_only=True, map_location="cpu")
    state.optimizer.load_state_dict(content["optimizer"])
    state.schedule.load_state_dict(content["schedule"])
    state.step = content["step"]
    for part in state.parts:
        state.sources = part.restore(folder, content["parts"][part.name], state.sources)
    progress: dict[str, Any] = content["progress"]
    return progress


Decay = Literal["linear", "cosine"]


def build_optimizer(
    encoder: Encoder,
    lr: float,
    weight_decay: float,
    embedding_lr: float | None = None,
    heads: Sequence[nn.Module] = (),
    head_lr: float | None = None,
) -> torch.optim.AdamW:
    """Build AdamW (eps 1e-6, as in NGAME); vectors, which are biases and norms, are not decayed.

    Rates are peaks; None takes ``lr``. ``heads`` are those in the encoder and those beside it.
    """
    # Token embeddings apart: a rare word is updated in few steps, and may need a larger rate.
    tokens = encoder.token_embeddings
    of_heads = (parameter for head in heads for parameter in head.parameters())
    apart = {id(parameter) for parameter in (tokens, *of_heads)}
    others = [p for p in encoder.parameters() if id(p) not in apart]
    groups = [
        {"params": [tokens], "weight_decay": weight_decay, "lr": embedding_lr or lr},
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups += head_groups(heads, head_lr or lr, weight_decay)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, eps=1e-6, fused=True)


def head_groups(heads: Sequence[nn.Module], lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups of heads, one for each parameter."""
    return [
        {
            "params": [parameter],
            "weight_decay": weight_decay if parameter.ndim >= 2 else 0.0,
            "lr": lr,
        }
        for head in heads
        for parameter in head.parameters()
    ]


def build_schedule(
    optimizer: torch.optim.Optimizer,
    warmup_steps: int,
    total_steps: int,
    decay: Decay = "linear",
    first_step: int = 0,
) -> LRScheduler:
    """Raise the learning rate linearly from ``first_step`` on, then lower it to zero."""
    falling = max(total_steps - warmup_steps, 1)

    def share_of_peak(step: int) -> float:
        step -= first_step
        if step < warmup_steps:
            return max(step, 0) / warmup_steps
        if decay == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min((step - warmup_steps) / falling, 1)))
        return max(total_steps - step, 0) / falling

    return LambdaLR(optimizer, share_of_peak)
