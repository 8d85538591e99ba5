"""The bases that RAMEN's regularisers are added to: names for combinations of parts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Order = Literal["random", "clustered", "batch_clusters"]
HardNegatives = Literal["none", "shortlists"]
TaskLoss = Literal["triplet", "decoupled", "supcon"]
Heads = Literal["none", "classifier"]
BaseName = Literal["in_batch", "ance", "ngame", "depsl", "unidec"]
NodeChoice = Literal["all", "rare", "clicked"]
"""Which nodes regularisers draw: all with edges alike, or the rarely clicked more often, or the
batch's queries and ads."""
Part = Literal["both", "encoder", "classifier"]
"""What a model with classifiers finds ads by: the cosines of both its vectors, or of one."""


@dataclass(frozen=True)
class Combination:
    """The parts of a base; each can be combined with all others."""

    # of the queries: random; clustered, so that similar ones share a batch, in clusters that grow;
    # or each batch of one cluster
    order: Order
    # ads drawn for a query besides those of the batch: none, or from shortlists of its nearest ads
    hard_negatives: HardNegatives
    # of the task: triplet, or a softmax over the pool, decoupled or not (supcon)
    loss: TaskLoss = "triplet"
    # what ads are found by: the encoder's embedding only, or also each ad's classifier
    heads: Heads = "none"
    num_positives: int = 1
    num_hard_negatives: int = 1
    shortlist_size: int = 100


# UniDEC, section 3: a softmax over up to three ads of each query, six hard negatives
DEPSL = Combination(
    order="batch_clusters",
    hard_negatives="shortlists",
    loss="decoupled",
    num_positives=3,
    num_hard_negatives=6,
    shortlist_size=30,
)
BASES: Mapping[BaseName, Combination] = {
    "in_batch": Combination(order="random", hard_negatives="none"),
    # Xiong et al., ICLR 2021: hard negatives from an index that is refreshed regularly
    "ance": Combination(order="random", hard_negatives="shortlists"),
    # Dahiya et al., WSDM 2023: the ads of similar queries are each other's hard negatives
    "ngame": Combination(order="clustered", hard_negatives="none"),
    "depsl": DEPSL,
    "unidec": replace(DEPSL, heads="classifier"),
}
