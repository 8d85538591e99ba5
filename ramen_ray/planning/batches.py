"""What a step draws, encodes and compares."""

import math
from dataclasses import dataclass

from ramen_ray.config import RunConfig
from ramen_ray.planning.sizes import Sizes


@dataclass(frozen=True)
class Batch:
    """What a step has to do; a mean over steps, if anchors are not drawn in all.

    Attributes:
        drawn: texts, as if none repeated.
        distinct: texts that are encoded, as equal ones are encoded once.
        pairs: similarities: of a query and an ad, or of a node and an anchor.
    """

    drawn: float
    distinct: float
    pairs: float


def batch_of(config: RunConfig, sizes: Sizes) -> Batch:
    """Count what a step of the global batch does.

    A query comes with its ads and its hard negatives. A regulariser draws an anchor for each node
    of its side, and the nodes too, if all may be drawn. Ads and anchors are taken to be drawn each
    as often as another; where some are drawn more often, they repeat more, and the step does less.
    """
    parts, regularization = config.base.parts, config.regularization
    queries = config.training.global_batch_size
    share = 1 / regularization.every_steps
    ads = queries * parts.num_positives
    if parts.hard_negatives == "shortlists":
        ads += queries * parts.num_hard_negatives
    own_ads = 0 if regularization.nodes == "clicked" else queries * len(sizes.graphs)
    nodes = 2 * queries  # of a set, of both sides: each has an anchor
    anchors = [share * distinct(nodes, graph.anchors) for graph in sizes.graphs]
    return Batch(
        drawn=queries + ads + share * (own_ads + nodes * len(sizes.graphs)),
        distinct=queries + distinct(ads + share * own_ads, sizes.ads) + sum(anchors),
        pairs=queries * distinct(ads, sizes.ads) + nodes * sum(anchors),
    )


def distinct(draws: float, rows: int) -> float:
    """Return how many of ``rows`` are expected among ``draws``, each as likely as another."""
    return -rows * math.expm1(-draws / rows)
