"""The parts of a base."""

from dataclasses import dataclass
from typing import Literal

Order = Literal["random", "clustered"]
HardNegatives = Literal["none", "shortlists"]


@dataclass(frozen=True)
class Combination:
    """The parts of a base; every order can be combined with every kind of hard negatives.

    Attributes:
        order: the order of the queries: random, or clustered, so that similar ones share a batch.
        hard_negatives: ads drawn for a query besides those of the batch: none, or from shortlists
            of its nearest ads.
    """

    order: Order
    hard_negatives: HardNegatives
