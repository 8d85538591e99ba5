"""Whether a candidate answers worse than the champion by judgements, or it cannot be told."""

from collections.abc import Mapping
from math import ceil

from ramen_ray.method.metrics.comparison import Difference, in_points
from ramen_ray.method.metrics.ranking import PerQuery

DETECTED = 0.05
"""The difference that judgements must be many enough to show: with 80 % power, at 95 %."""
STANDARD_ERRORS = 1.96 + 0.84


def objection(
    metric: str,
    differences: Mapping[str, Difference],
    gains: tuple[Mapping[str, PerQuery], Mapping[str, PerQuery]],
) -> str | None:
    """Say why a candidate must not be promoted by a ``bad@k``; None if it may be.

    It must not if its share of bad answers is higher by more than noise, or if too few answers are
    judged to show that, unless its share is lower by more than noise. ``gains`` are those of the
    candidate and of the champion.
    """
    if metric not in differences:
        return f"{metric} needs judgements of test queries"
    difference = differences[metric]
    if difference.low > 0:
        return f"its {metric} is higher: {in_points(difference)}"
    fewest = min(int(possible.sum()) for _, possible in (of_model[metric] for of_model in gains))
    needed = _num_needed(*(sum(part[metric][kind].sum() for part in gains) for kind in (0, 1)))
    if fewest >= needed or difference.high < 0:
        return None
    return (
        f"{metric} is not known well enough: {fewest:,} answers are judged, and to show a"
        f" difference of {100 * DETECTED:g} points takes about {needed:,}"
    )


def _num_needed(num_bad: float, num_judged: float) -> int:
    """Return how many judged answers of each model show DETECTED; a share of 0 is never certain."""
    share = (num_bad + 1) / (num_judged + 2)
    return ceil(2 * share * (1 - share) * (STANDARD_ERRORS / DETECTED) ** 2)
