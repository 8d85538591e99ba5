"""Search spaces: what they may hold, where a search begins in them, and their grids."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.tune.search.sample import Categorical, Domain, LogUniform

from ramen_ray.config import ConfigError, RunConfig, flatten, overlay

Space = Mapping[str, Domain]
"""Samplers by dotted key of the configuration."""

POINTS_OF_A_GRID = 3


def check_space(config: RunConfig, space: Space) -> None:
    """Draw each setting once, and see that the configuration takes it.

    Raises:
        ConfigError: the space is empty, or a key or a value does not fit the configuration.
    """
    if not space:
        raise ConfigError("the search space is empty: nothing would be tuned")
    known = flatten(config)
    for key, domain in space.items():
        if key not in known:
            raise ConfigError(f"the search space samples {key}, which the configuration lacks")
        overlay(config, {key: domain.sample(random_state=config.seed)})


def own_values(config: RunConfig, space: Space) -> dict[str, Any]:
    """Return the configuration's own values of what is searched, as far as the space holds them."""
    own = flatten(config)
    return {key: own[key] for key, domain in space.items() if domain.is_valid(own[key])}


def grid(space: Space) -> dict[str, list[Any]]:
    """Return the values of each setting that a grid search combines.

    They are all categories, or values evenly from bound to bound (of the logarithm if sampled so).

    Raises:
        ConfigError: a sampler has no bounds.
    """
    return {key: _points(key, domain) for key, domain in space.items()}


def _points(key: str, domain: Domain) -> list[Any]:
    if isinstance(domain, Categorical):
        return list(domain.categories)
    low, high = float(domain.lower), float(domain.upper)
    if not math.isfinite(low) or not math.isfinite(high):
        raise ConfigError(f"{key}: a grid needs choices, or a sampler with bounds")
    is_log = isinstance(domain.get_sampler(), LogUniform)
    points = (np.geomspace if is_log else np.linspace)(low, high, POINTS_OF_A_GRID)
    return [domain.cast(float(point)) for point in points]
