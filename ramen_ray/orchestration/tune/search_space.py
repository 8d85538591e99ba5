"""Search spaces: checks, the first trial's values, and grids."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Domain

from ramen_ray.config import ConfigError, RunConfig, flatten, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.run.checks import check_config

Space = Mapping[str, Domain]  # samplers by dotted key of the configuration

POINTS_OF_A_GRID = 3


def check_space(config: RunConfig, space: Space, dataset: Dataset) -> dict[str, BaseDistribution]:
    """Check that a sweep can draw from a space, and that training accepts every choice and bound.

    Returns Optuna's distributions of all settings.

    Raises:
        ConfigError, DatasetError, EncoderError: the space is empty, a key does not fit the
            configuration, Optuna does not know a sampler, or :func:`check_config` refuses a value.
    """
    if not space:
        raise ConfigError("the search space is empty: nothing would be tuned")
    distributions = {key: _distribution(key, domain) for key, domain in space.items()}
    values = grid(distributions)
    # the fewest whole settings that use every value of each key
    for row in range(max(map(len, values.values()))):
        setting = {key: of[row % len(of)] for key, of in values.items()}
        check_config(overlay(config, setting), dataset)
    return distributions


def _distribution(key: str, domain: Domain) -> BaseDistribution:
    try:
        return OptunaSearch.convert_search_space({key: domain})[key]
    except (KeyError, ValueError):  # a plain value, or a sampler that Optuna lacks
        raise ConfigError(
            f"{key}: a search space needs choices, or a sampler with bounds (tune.choice, "
            f"tune.uniform, tune.loguniform, tune.randint, tune.lograndint or tune.quniform)"
        ) from None


def own_values(config: RunConfig, space: Space) -> dict[str, Any] | None:
    """Return the configuration's own values of tuned settings; None if the space lacks one."""
    own = flatten(config) | {f"base.{name}": of for name, of in asdict(config.base.parts).items()}
    has_all = all(key in own and domain.is_valid(own[key]) for key, domain in space.items())
    return {key: own[key] for key in space} if has_all else None


def grid(distributions: Mapping[str, BaseDistribution]) -> dict[str, list[Any]]:
    """Return the values of each setting that a grid search combines.

    These are all categories, or values evenly spaced from bound to bound, in the logarithm if the
    sampler is logarithmic.
    """
    return {key: _points(distribution) for key, distribution in distributions.items()}


def _points(distribution: Any) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    low, high, step = distribution.low, distribution.high, distribution.step
    points = (np.geomspace if distribution.log else np.linspace)(low, high, POINTS_OF_A_GRID)
    if step:
        points = low + step * np.round((points - low) / step)
    return list(dict.fromkeys(points.astype(type(low)).tolist()))
