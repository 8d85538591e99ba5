"""DEPSL (UniDEC, section 3): a softmax over several ads of each query, in batches of similar ones.

As in the paper, a batch is one cluster of queries, each with up to three ads and six hard
negatives.
"""

from ramen_ray.bases.combination import Combination

DEPSL = Combination(
    order="batch_clusters",
    hard_negatives="shortlists",
    loss="decoupled",
    num_positives=3,
    num_hard_negatives=6,
    shortlist_size=30,
)
