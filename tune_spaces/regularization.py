"""Weights of the graph, and how far it is walked."""

from typing import Any

from ray import tune

from ramen_ray.config import RunConfig


def regularization(config: RunConfig) -> dict[str, Any]:
    """λ of the anchor sets and sides in use, the margin, and how near walks stay to their start.

    λ is tuned from a tenth to ten times its value. Where it adapts, its highest value is tuned
    instead. Settings of the walk are tuned if there is one.
    """
    used = config.regularization
    space: dict[str, Any] = {}
    if used.adaptive and (used.lambda_x or used.lambda_z):
        highest = used.adaptive_max
        space["regularization.adaptive_max"] = tune.loguniform(highest / 10, highest * 10 / 3)
    elif not used.adaptive:
        for side, weights in (("lambda_x", used.lambda_x), ("lambda_z", used.lambda_z)):
            for name, weight in weights.items():
                key = f"regularization.{side}.{name}"
                space[key] = tune.loguniform(weight / 10, weight * 10)
    space["loss.margin"] = tune.uniform(0.1, 0.5)
    if config.walk.enabled:
        space["walk.restart_probability"] = tune.choice([0.5, 0.6, 0.7, 0.8, 0.9])
    return space
