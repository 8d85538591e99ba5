"""ANCE (Xiong et al., ICLR 2021): hard negatives from an index that is refreshed regularly."""

from ramen_ray.bases.combination import Combination

ANCE = Combination(order="random", hard_negatives="shortlists")
