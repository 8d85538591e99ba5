"""The parts of a base."""

from dataclasses import dataclass
from typing import Literal

Order = Literal["random", "clustered", "batch_clusters"]
HardNegatives = Literal["none", "shortlists"]
TaskLoss = Literal["triplet", "decoupled", "supcon"]
Heads = Literal["none", "classifier"]
Part = Literal["both", "encoder", "classifier"]
"""What a model with classifiers finds ads by: the cosines of both its vectors, or of one."""


@dataclass(frozen=True)
class Combination:
    """The parts of a base; each can be combined with all others.

    Attributes:
        order: the order of the queries: random; clustered, so that similar ones share a batch, in
            clusters that grow; or in clusters as large as a batch.
        hard_negatives: ads drawn for a query besides those of the batch: none, or from shortlists
            of its nearest ads.
        loss: loss of the task: triplet, or a softmax over the pool, decoupled or not (supcon).
        heads: what ads are found by: the encoder's embedding only, or also each ad's classifier.
        num_positives: clicked ads drawn for a query.
        num_hard_negatives: hard negatives drawn for a query.
        shortlist_size: ads of a shortlist.
    """

    order: Order
    hard_negatives: HardNegatives
    loss: TaskLoss = "triplet"
    heads: Heads = "none"
    num_positives: int = 1
    num_hard_negatives: int = 1
    shortlist_size: int = 100
