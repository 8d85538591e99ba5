"""AdamW with a linear warm-up and decay."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_linear_schedule_with_warmup


def build_optimizer(encoder: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Build AdamW (eps 1e-6, as NGAME); biases and norms, which are vectors, are not decayed."""
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, eps=1e-6, fused=True)


def build_schedule(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int
) -> LRScheduler:
    """Raise the learning rate linearly over ``warmup_steps``, then lower it linearly to zero."""
    return get_linear_schedule_with_warmup(optimizer, warmup_steps, total_steps)
