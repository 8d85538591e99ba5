"""AdamW with a linear warm-up, and a linear or cosine decay."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ramen_ray.method.model.encoder import Encoder

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

    Rates are peaks; None takes ``lr``. ``heads`` are those of the encoder, and beside it.
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
    """Raise the learning rate linearly over ``warmup_steps``, then lower it to zero.

    Both begin at ``first_step``; the rate is zero before.
    """
    falling = max(total_steps - warmup_steps, 1)

    def share_of_peak(step: int) -> float:
        step -= first_step
        if step < warmup_steps:
            return max(step, 0) / warmup_steps
        if decay == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min((step - warmup_steps) / falling, 1)))
        return max(total_steps - step, 0) / falling

    return LambdaLR(optimizer, share_of_peak)
