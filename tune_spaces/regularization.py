"""Weights of the graph, and how far it is walked."""

from typing import Any

from ray import tune

from ramen_ray.config import RunConfig


def regularization(config: RunConfig) -> dict[str, Any]:
    """λ_x and λ_z of the anchor sets in use, the margin, and how near walks stay to their start.

    The paper gives no λ; OAK's weights of the same kind are 0.1 and 1. Below 0.01 a regulariser
    has no visible effect on the built-in data. Where λ adapts, its highest value is tuned instead.
    Without a walk, its settings are not tuned.
    """
    used = config.regularization
    space: dict[str, Any] = {}
    if used.adaptive:
        space["regularization.adaptive_max"] = tune.loguniform(0.03, 1.0)
    else:
        weights = (*used.lambda_x.items(), *used.lambda_z.items())
        for name in sorted({name for name, weight in weights if weight}):
            space[f"regularization.lambda_x.{name}"] = tune.loguniform(0.01, 1.0)
            space[f"regularization.lambda_z.{name}"] = tune.loguniform(0.01, 1.0)
    space["loss.margin"] = tune.uniform(0.1, 0.5)
    if config.walk.enabled:
        space["walk.restart_probability"] = tune.choice([0.5, 0.6, 0.7, 0.8, 0.9])
    return space
