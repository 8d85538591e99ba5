"""What a training has in memory, by how its arrays are laid out. Nothing is run."""

import math
from typing import NamedTuple

from ramen_ray.config import RunConfig
from ramen_ray.method.retrieval.index import DIMENSIONS_PER_CODE, HNSW_LINKS, IndexKind, choose_kind

POINTER = HASH = WEIGHT = 8  # bytes, as all that follow
FLOAT = INT32 = 4
HALF = TOKEN = 2
STATES = 16  # of a weight, its gradient and its moments
CLASSIFIER_STATES = 12  # the same without a gradient
ENCODERS = {"bag": (384, 11_720_448), "minilm": (384, 22_565_376), "distilbert": (768, 66_362_880)}
"""Width and number of weights; the bag is of MiniLM's token embeddings."""


class Sizes(NamedTuple):
    """What a dataset has; each anchor set links all queries and ads."""

    queries: int
    ads: int
    clicks: float
    tokens: float  # of a text
    anchors: tuple[int, ...] = ()  # of each set
    edges_per_node: float = 0  # in each set

    @property
    def texts(self) -> int:
        """Texts of queries, ads and anchors."""
        return self.queries + self.ads + sum(self.anchors)

    @property
    def linked(self) -> int:
        """Nodes of all sets, each of which has edges."""
        return (self.queries + self.ads) * len(self.anchors)


def prepared_bytes(sizes: Sizes) -> float:
    """Token tables, clicks and weighted edges; the held-out splits, which are small, left out."""
    texts = sizes.texts * (sizes.tokens * TOKEN + POINTER + HASH)
    nodes = POINTER * (2 * sizes.queries + sizes.ads)
    return texts + nodes + INT32 * sizes.clicks + graph_bytes(sizes, sizes.edges_per_node)


def graph_bytes(sizes: Sizes, edges_per_node: float) -> float:
    """Weighted edges of all sets and sides."""
    return sizes.linked * (POINTER + edges_per_node * (INT32 + WEIGHT))


def hopped_bytes(sizes: Sizes) -> float:
    """The graphs that walks hop through: edges from nodes, and from anchors."""
    pointer = POINTER if max(sizes.queries, sizes.ads) * sizes.edges_per_node >= 2**31 else INT32
    edges = sizes.linked * (pointer + 2 * INT32 * sizes.edges_per_node)
    return edges + 2 * pointer * sum(sizes.anchors)


def index_bytes(ads: int, dim: int, kind: IndexKind) -> float:
    """An index of a retriever."""
    if kind == "ivf_pq":
        centroids = 2 * math.isqrt(ads) + 256  # of cells, and of each code
        return ads * (dim / DIMENSIONS_PER_CODE + 8) + FLOAT * centroids * dim
    return ads * (FLOAT * dim + (2 * 4 * HNSW_LINKS + 16) * (kind == "hnsw"))


def memory(sizes: Sizes, config: RunConfig, dim: int, weights: int) -> dict[str, dict[str, float]]:
    """Return bytes of what each stage reads at random or holds, on a machine with one worker."""
    parts = config.base.parts
    graph = graph_bytes(sizes, config.walk.top_k if config.walk.enabled else sizes.edges_per_node)
    has_shortlists = parts.hard_negatives == "shortlists"
    prunes = config.pruning.mode != "never" and bool(sizes.anchors)
    training = {
        "prepared arrays": prepared_bytes(sizes),
        "walked graph": graph * config.walk.enabled,
        "pruned graph": graph * prunes,
        "shortlists": FLOAT * sizes.queries * parts.shortlist_size * has_shortlists,
        "vectors that order queries": HALF * sizes.queries * dim * (parts.order != "random"),
        "classifiers": CLASSIFIER_STATES * sizes.ads * dim * (parts.heads == "classifier"),
        "weights of the encoder": STATES * weights,
    }
    return {
        "training": training,
        "walks": {"graph": hopped_bytes(sizes) * config.walk.enabled},
        "pruning": {"vectors of all texts": HALF * sizes.texts * dim * prunes},
        "answering": {"index of the ads": index_bytes(sizes.ads, dim, choose_kind(sizes.ads))},
    }
