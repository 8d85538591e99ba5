"""NGAME (Dahiya et al., WSDM 2023): batches of similar queries, whose ads are hard negatives."""

from ramen_ray.bases.combination import Combination

NGAME = Combination(order="clustered", hard_negatives="none")
