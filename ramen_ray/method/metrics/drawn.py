"""Queries that are drawn with unlike chances, and how far two judges agree."""

from collections.abc import Mapping

import numpy as np

from ramen_ray.data.arrays import Float64s, Int64s
from ramen_ray.method.metrics.ranking import PerQuery


def inclusion(weights: Float64s, count: int) -> Float64s:
    """Return the chance (n,) of each to be among ``count``: in proportion to weights, at most 1."""
    is_certain = np.zeros(len(weights), dtype=bool)
    while True:
        shares = np.where(is_certain, 0.0, weights)
        chances = (count - is_certain.sum()) * shares / max(shares.sum(), 1e-300)
        chances[is_certain] = 1.0
        if (chances <= 1).all():
            return chances
        is_certain |= chances >= 1


def drawn_places(chances: Float64s, draw: np.random.Generator) -> Int64s:
    """Draw places (count,) in random order, each with its chance; these sum up to the count."""
    order = draw.permutation(len(chances))
    ends = draw.random() + np.cumsum(chances[order])
    is_drawn = np.diff(np.floor(ends + 1e-9), prepend=0.0) > 0
    return draw.permutation(order[is_drawn])


def weighed(metrics: Mapping[str, PerQuery], weights: Float64s) -> dict[str, PerQuery]:
    """Weigh queries, as by one over their chance: sums then stand for all queries."""
    return {
        name: (gained * weights, possible * weights) for name, (gained, possible) in metrics.items()
    }


def kappa(ours: list[int], theirs: list[int]) -> float:
    """Return Cohen's kappa of two judges' grades of the same pairs: 1 agree, 0 as by chance."""
    counts = np.zeros((1 + max(*ours, *theirs),) * 2)
    np.add.at(counts, (ours, theirs), 1 / len(ours))
    by_chance = counts.sum(axis=0) @ counts.sum(axis=1)
    return float((np.trace(counts) - by_chance) / (1 - by_chance)) if by_chance < 1 else 1.0
