"""AdamW with a linear warm-up and decay."""

import torch
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_linear_schedule_with_warmup

from ramen_ray.method.model.encoder import Encoder


def build_optimizer(
    encoder: Encoder, lr: float, weight_decay: float, embedding_lr: float | None = None
) -> torch.optim.AdamW:
    """Build AdamW (eps 1e-6, as in NGAME); vectors, which are biases and norms, are not decayed.

    Args:
        encoder: the encoder to train.
        lr: peak learning rate.
        weight_decay: weight decay of the matrices.
        embedding_lr: peak learning rate of the token embeddings; None for ``lr``. A token's
            embedding is updated only in steps with the token, so rare words need a larger rate.
    """
    tokens = encoder.token_embeddings
    others = [p for p in encoder.parameters() if p is not tokens]
    groups = [
        {"params": [tokens], "weight_decay": weight_decay, "lr": embedding_lr or lr},
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, eps=1e-6, fused=True)


def build_schedule(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int
) -> LRScheduler:
    """Raise the learning rate linearly over ``warmup_steps``, then lower it linearly to zero."""
    return get_linear_schedule_with_warmup(optimizer, warmup_steps, total_steps)
