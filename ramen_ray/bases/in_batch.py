"""Plain in-batch training: a query's negatives are the ads drawn for the other queries."""

from ramen_ray.bases.combination import Combination

IN_BATCH = Combination(order="random", hard_negatives="none")
