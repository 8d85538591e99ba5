"""Which negatives a query is compared with."""

from typing import Any

from ray import tune

from ramen_ray.config import RunConfig


def mining(config: RunConfig) -> dict[str, Any]:
    """The margin, how many negatives of a row count, and hard negatives if the base draws any."""
    space: dict[str, Any] = {
        "loss.margin": tune.uniform(0.1, 0.5),
        "loss.num_negatives": tune.choice([1, 3, 10, 30]),
        "loss.softmax_weighting": tune.choice([False, True]),
    }
    if config.base.parts.hard_negatives == "shortlists":
        space["base.num_hard_negatives"] = tune.choice([1, 2, 5])
        space["base.shortlist_size"] = tune.choice([20, 50, 100])
    return space
