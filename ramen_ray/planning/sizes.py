"""The sizes of a dataset, and of an encoder."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ramen_ray.planning.machines import PlanError

EncoderName = Literal["bag", "minilm", "distilbert"]
_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def parse_count(text: str) -> int:
    """Read a count such as ``320K``, ``2.46M``, ``1.2B`` or ``5000``.

    Raises:
        PlanError: it is not such a count.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.strip().replace(",", ""), re.IGNORECASE)
    count = round(float(found[1]) * _SUFFIXES[found[2].upper()]) if found else 0
    if not count:
        raise PlanError(f"{text!r} is not a count; write it as 5000, 320K, 2.46M or 1.2B")
    return count


@dataclass(frozen=True)
class Graph:
    """An anchor set.

    Attributes:
        anchors: number of its anchors.
        per_query: edges of a train query, on average.
        per_ad: edges of an ad, on average.
    """

    anchors: int
    per_query: float
    per_ad: float


class Side(NamedTuple):
    """One side of an anchor set: queries or ads, their edges, and the set's anchors."""

    nodes: int
    edges: float
    anchors: int


@dataclass(frozen=True)
class Sizes:
    """What a dataset has.

    Attributes:
        queries: train queries.
        ads: ads.
        graphs: anchor sets.
        clicks_per_query: clicks of a train query, on average.
        tokens: tokens of a text, on average, with special tokens if the encoder has any.
    """

    queries: int
    ads: int
    graphs: tuple[Graph, ...]
    clicks_per_query: float
    tokens: float

    @property
    def nodes(self) -> int:
        """Queries and ads."""
        return self.queries + self.ads

    @property
    def anchors(self) -> int:
        """Anchors of all sets."""
        return sum(graph.anchors for graph in self.graphs)

    @property
    def texts(self) -> int:
        """Texts of queries, ads and anchors."""
        return self.nodes + self.anchors

    @property
    def clicks(self) -> float:
        """Train clicks."""
        return self.queries * self.clicks_per_query

    @property
    def edges(self) -> float:
        """Edges of all sets and both sides."""
        return sum(side.edges for side in self.sides)

    @property
    def sides(self) -> list[Side]:
        """Both sides of every set."""
        return [
            Side(nodes, edges, graph.anchors)
            for graph in self.graphs
            for nodes, edges in (
                (self.queries, self.query_edges(graph)),
                (self.ads, self.ad_edges(graph)),
            )
        ]

    def query_edges(self, graph: Graph) -> float:
        """Edges of a set's query side."""
        return self.queries * graph.per_query

    def ad_edges(self, graph: Graph) -> float:
        """Edges of a set's ad side."""
        return self.ads * graph.per_ad


@dataclass(frozen=True)
class Encoder:
    """An encoder's weights: ``matrices``, by which every token is multiplied, and ``embeddings``.

    Attributes:
        layers: of the transformer; 0 for a bag of token embeddings.
        dim: width of an embedding.
        matrices: weights of all layers.
        embeddings: weights of the tables of embeddings.
    """

    layers: int
    dim: int
    matrices: int
    embeddings: int

    @property
    def weights(self) -> int:
        """All weights."""
        return self.matrices + self.embeddings

    def operations(self, texts: float, tokens: float, is_training: bool) -> float:
        """Count the operations on ``texts`` of ``tokens`` each: 2 a weight and token, training 6.

        Attention adds products of all pairs of a text's tokens.
        """
        passes = 3 if is_training else 1
        pairs = 4 * self.layers * self.dim * tokens
        return passes * texts * tokens * (2 * self.matrices + pairs)


ENCODERS: dict[EncoderName, Encoder] = {
    "bag": Encoder(0, 384, 0, 11_720_448),
    "minilm": Encoder(6, 384, 10_646_784, 11_918_592),
    "distilbert": Encoder(6, 768, 42_527_232, 23_835_648),
}
"""A bag of MiniLM's token embeddings, all-MiniLM-L6-v2, and DistilBERT."""
