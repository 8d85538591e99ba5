"""Search spaces for jobs/tune.py: functions that return samplers for some settings.

A space is a function of the configuration that is tuned. It returns samplers by dotted key; those
of settings that do nothing are left out. The keys are flags of jobs/train.py, so the results can be
pasted there.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from ray import tune

from ramen_ray.config import RunConfig
from ramen_ray.idle_settings import advice_on_idle


def regularization(config: RunConfig) -> dict[str, Any]:
    """λ of the anchor sets and sides in use, the margin, and how near walks stay to their start.

    λ, which is the highest value where it adapts, is tuned from a tenth to ten times its value.
    Settings of the walk are tuned if there is one.
    """
    used = config.regularization
    space: dict[str, Any] = {}
    for side, weights in (("lambda_x", used.lambda_x), ("lambda_z", used.lambda_z)):
        for name, weight in weights.items():
            key = f"regularization.{side}.{name}"
            space[key] = tune.loguniform(weight / 10, weight * 10)
    space["loss.margin"] = tune.uniform(0.1, 0.5)
    space["walk.restart_probability"] = tune.choice([0.5, 0.6, 0.7, 0.8, 0.9])
    return space


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


def mining(config: RunConfig) -> dict[str, Any]:
    """The margin, how many negatives of a row count, and hard negatives if the base draws any."""
    return {
        "loss.margin": tune.uniform(0.1, 0.5),
        "loss.num_negatives": tune.choice([1, 3, 10, 30]),
        "loss.softmax_weighting": tune.choice([False, True]),
        "base.num_hard_negatives": tune.choice([1, 2, 5]),
        "base.shortlist_size": tune.choice([20, 50, 100]),
    }


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


def unidec(config: RunConfig) -> dict[str, Any]:
    """Learning rates, temperatures, shares, how many ads are drawn; with a graph also its λ."""
    space: dict[str, Any] = {
        "optimizer.lr": tune.loguniform(config.optimizer.lr / 4, config.optimizer.lr * 4),
        "base.num_positives": tune.choice([1, 2, 3]),
        "base.num_hard_negatives": tune.choice([1, 3, 6, 10]),
        "loss.temperature": tune.loguniform(0.02, 0.2),
        "loss.reverse_share": tune.choice([0.0, 0.5]),
        "classifier.share": tune.uniform(0.2, 0.8),
        "classifier.temperature": tune.loguniform(0.05, 1.0),
        "classifier.lr": tune.loguniform(1e-3, 1e-1),
        "classifier.weight": tune.loguniform(0.1, 2.0),
        "classifier.text_scale": tune.uniform(0.3, 1.0),
    }
    if config.regularization.lambda_x or config.regularization.lambda_z:
        space |= regularization(config)
    return space


def _of_what_acts(space: Callable[[RunConfig], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @wraps(space)
    def acting(config: RunConfig) -> dict[str, Any]:
        drawn = space(config)
        return {key: drawn[key] for key in drawn if advice_on_idle(config, key) is None}

    return acting


_FUNCTIONS = (regularization, optimizer, mining, encoder, unidec)
SPACES = {space.__name__: _of_what_acts(space) for space in _FUNCTIONS}
