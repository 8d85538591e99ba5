"""Size of the encoder, and how its tokens become an embedding."""

from typing import Any

from ray import tune

from ramen_ray.config import RunConfig


def encoder(config: RunConfig) -> dict[str, Any]:
    """Text length and learning rate, and for transformers also layers and pooling."""
    length, rate = config.encoder.max_length, config.optimizer.lr
    space: dict[str, Any] = {
        "encoder.max_length": tune.choice(sorted({max(length // 2, 4), length})),
        "optimizer.lr": tune.loguniform(rate / 5, rate * 5),
    }
    if config.encoder.kind == "transformer":
        space["encoder.num_layers"] = tune.choice([1, 2, 3])
        space["encoder.pooling"] = tune.choice(["mean", "cls"])
    return space
