"""Learning rates, decay and warm-up."""

from typing import Any

from ray import tune

from ramen_ray.config import RunConfig


def optimizer(config: RunConfig) -> dict[str, Any]:
    """Learning rates around the configured ones, weight decay and warm-up.

    The token embeddings have their own rate if the configuration has one, as rare words are seen in
    few steps.
    """
    settings = config.optimizer
    space: dict[str, Any] = {
        "optimizer.lr": tune.loguniform(settings.lr / 5, settings.lr * 5),
        "optimizer.weight_decay": tune.choice([0.0, 0.01, 0.1]),
        "optimizer.warmup_fraction": tune.uniform(0.0, 0.2),
    }
    if settings.embedding_lr is not None:
        rate = settings.embedding_lr
        space["optimizer.embedding_lr"] = tune.loguniform(rate / 5, rate * 5)
    return space
