"""Two models on the same queries: the difference of their metrics, with intervals."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ramen_ray.data.arrays import Floats
from ramen_ray.method.metrics import PerQuery, ratio

NUM_SAMPLES = 2000
DRAWS_AT_ONCE = 1 << 24
CONFIDENCE = 0.95


class Difference(NamedTuple):
    """A metric of one model less that of another, with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


def mean_over_seeds(runs: Sequence[Mapping[str, PerQuery]]) -> dict[str, PerQuery]:
    """Return each metric with the gains of every query averaged over runs on the same queries."""
    return {
        name: (np.mean([run[name][0] for run in runs], axis=0), possible)
        for name, (_, possible) in runs[0].items()
    }


def paired_differences(
    ours: Mapping[str, PerQuery], base: Mapping[str, PerQuery], seed: int = 0
) -> dict[str, Difference]:
    """Return how much the metrics of ``ours`` exceed those of ``base`` on the same queries.

    The intervals are of a bootstrap over the queries (percentiles of 2,000 samples): all metrics of
    both models are taken anew over each sample of queries.
    """
    names = list(ours)
    sums = [np.stack([part for name in names for part in side[name]], 1) for side in (ours, base)]
    sampled = np.diff([_sampled_ratios(values, seed) for values in sums[::-1]], axis=0)[0]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sampled, [tail, 1 - tail], axis=0)
    return {
        name: Difference(ratio(ours[name]) - ratio(base[name]), float(low[i]), float(high[i]))
        for i, name in enumerate(names)
    }


def _sampled_ratios(values: Floats, seed: int) -> Floats:
    """Return metrics (samples, metrics) over samples of queries.

    Args:
        values: (queries, 2 * metrics), gained and possible by turns.
        seed: of the draw; the same draws the same queries.
    """
    draw = np.random.default_rng(seed)
    num_queries = len(values)
    at_once = max(DRAWS_AT_ONCE // num_queries, 1)
    even = np.full(num_queries, 1 / num_queries)
    sums = np.concatenate(
        [
            draw.multinomial(num_queries, even, size=min(at_once, NUM_SAMPLES - start)) @ values
            for start in range(0, NUM_SAMPLES, at_once)
        ]
    )
    gained, possible = sums[:, ::2], sums[:, 1::2]
    return np.divide(gained, possible, out=np.zeros_like(gained), where=possible > 0)
