"""Plain in-batch training: the ads that others drew are each query's negatives."""

from ramen_ray.bases.combination import Combination

IN_BATCH = Combination(order="random", hard_negatives="none")
