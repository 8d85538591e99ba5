"""True neighbours of ads, which nobody has: what a combiner could do with better ones.

A true neighbour of a novel ad is a seen ad that a test query clicks as well (the papers' ablation).
If true neighbours help and the nearest do not, it is the neighbours that fail, not the combiner.
"""

import numpy as np

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.novel_ads.evaluation import Embedded
from ramen_ray.method.novel_ads.neighbours import SeenAds, Vectors, clicked_together

NEIGHBOURS = 3
CLICKED_TOGETHER = 100  # of which those without train clicks are left out
SHARE = 0.6  # of the classifiers' mean, added to the text


def true_neighbours(embedded: Embedded, seen: SeenAds) -> Int64s:
    """Return, by ad, rows (ads, NEIGHBOURS) of seen ads that a test query clicks too, then -1."""
    clicks = embedded.data.clicks["test"]
    together = clicked_together(clicks, embedded.all_ads(), CLICKED_TOGETHER)
    return _first_distinct(np.where(together >= 0, seen.rows_of(np.maximum(together, 0)), -1))


def with_first(true: Int64s, seen: SeenAds, text: Vectors) -> Int64s:
    """Return rows (ads, NEIGHBOURS) of seen ads: the ``true`` ones, then the nearest by text."""
    own = seen.rows_of(np.arange(len(text)))
    return _first_distinct(np.hstack([true, seen.nearest(text, NEIGHBOURS, own).rows]))


def _first_distinct(rows: Int64s) -> Int64s:
    """Return the first different rows (n, NEIGHBOURS) of ``rows`` (n, m), -1 after the last."""
    repeated = (rows[:, :, None] == rows[:, None, :]) & np.tri(rows.shape[1], k=-1, dtype=bool)
    missing = (rows < 0) | repeated.any(axis=2)
    order = np.argsort(missing, axis=1, kind="stable")[:, :NEIGHBOURS]
    return np.take_along_axis(np.where(missing, -1, rows), order, axis=1)


def added(text: Vectors, classifiers: Vectors, neighbours: Int64s) -> Vectors:
    """Return text + SHARE x mean of the neighbours' classifiers, (ads, D)."""
    is_there = (neighbours >= 0)[..., None]
    total = np.where(is_there, classifiers[neighbours], 0).sum(axis=1)
    return text + np.float32(SHARE) * total / np.maximum(is_there.sum(axis=1), 1)
