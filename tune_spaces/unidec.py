"""The softmax losses of depsl and unidec, and the classifiers of unidec."""

from typing import Any

from ray import tune

from ramen_ray.config import RunConfig
from tune_spaces.regularization import regularization


def unidec(config: RunConfig) -> dict[str, Any]:
    """Learning rates, temperatures, shares, how many ads are drawn; with a graph also its λ."""
    space: dict[str, Any] = {
        "optimizer.lr": tune.loguniform(config.optimizer.lr / 4, config.optimizer.lr * 4),
        "base.num_positives": tune.choice([1, 2, 3]),
        "base.num_hard_negatives": tune.choice([1, 3, 6, 10]),
    }
    if config.base.parts.loss != "triplet":
        space["loss.temperature"] = tune.loguniform(0.02, 0.2)
        space["loss.reverse_share"] = tune.choice([0.0, 0.5])
    if config.base.parts.heads == "classifier":
        space |= {
            "classifier.share": tune.uniform(0.2, 0.8),
            "classifier.temperature": tune.loguniform(0.05, 1.0),
            "classifier.lr": tune.loguniform(1e-3, 1e-1),
            "classifier.weight": tune.loguniform(0.1, 2.0),
            "classifier.text_scale": tune.uniform(0.3, 1.0),
        }
    if config.regularization.lambda_x or config.regularization.lambda_z:
        space |= regularization(config)
    return space
