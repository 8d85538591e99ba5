"""Bytes of the arrays that the stages write and read, computed as they are laid out.

The layouts are those of :mod:`ramen_ray.data.prepared` and :mod:`ramen_ray.method.graph.walk`.
"""

import math

from ramen_ray.method.retrieval.index import DIMENSIONS_PER_CODE, HNSW_LINKS, choose_kind
from ramen_ray.planning.sizes import Graph, Sizes

POINTER, HASH, WEIGHT = 8, 8, 8
LARGEST_INT32 = 2**31 - 1
TOKEN = 2  # vocabularies of up to 65,536 tokens


def id_bytes(limit: int) -> int:
    """Return the bytes of an id below ``limit``."""
    return 4 if limit <= LARGEST_INT32 else 8


def token_bytes(texts: float, tokens: float) -> float:
    """Tokens, offsets and hashes of ``texts`` of ``tokens`` each."""
    return texts * (tokens * TOKEN + POINTER + HASH)


def csr_bytes(rows: float, entries: float, columns: int, is_weighted: bool) -> float:
    """Row starts, column ids, and running sums of weights if these differ."""
    return rows * POINTER + entries * (id_bytes(columns) + (WEIGHT if is_weighted else 0))


def prepared_bytes(sizes: Sizes, is_weighted: bool = True) -> float:
    """The prepared arrays; the held-out splits, which are small, are left out."""
    graphs = sum(graph_bytes(sizes, graph, is_weighted) for graph in sizes.graphs)
    clicks = csr_bytes(sizes.queries, sizes.clicks, sizes.ads, is_weighted=False)
    ids_and_counts = POINTER * (sizes.queries + sizes.ads)
    return token_bytes(sizes.texts, sizes.tokens) + clicks + ids_and_counts + graphs


def graph_bytes(sizes: Sizes, graph: Graph, is_weighted: bool) -> float:
    """Both sides of an anchor set's edges."""
    queries = csr_bytes(sizes.queries, sizes.query_edges(graph), graph.anchors, is_weighted)
    return queries + csr_bytes(sizes.ads, sizes.ad_edges(graph), graph.anchors, is_weighted)


def walk_graph_bytes(nodes: int, anchors: int, edges: float) -> float:
    """The graph that a walk hops through: one side's edges from nodes, and from anchors."""
    pointer = id_bytes(int(edges))
    ends = id_bytes(anchors) + id_bytes(nodes)
    return (nodes + anchors) * pointer + edges * ends


def walked_bytes(sizes: Sizes, top_k: int) -> float:
    """What walks keep of all sides; they visit about as many anchors as a node can reach."""
    return sum(
        csr_bytes(nodes, top_k * min(nodes, edges), LARGEST_INT32, is_weighted=True)
        for nodes, edges, _ in sizes.sides
    )


def embedding_bytes(texts: float, dim: int) -> float:
    """Embeddings in half precision."""
    return 2 * texts * dim


def classifier_bytes(ads: int, dim: int) -> float:
    """Classifiers and their two moments, in float32."""
    return 3 * 4.0 * ads * dim


def index_bytes(ads: int, dim: int) -> float:
    """The index that a retriever of this many ads has."""
    match choose_kind(ads):
        case "flat":
            return 4.0 * ads * dim
        case "hnsw":
            return ads * (4.0 * dim + 2 * 4 * HNSW_LINKS + 16)
        case "ivf_pq":
            cells = 2 * math.isqrt(ads)
            return ads * (dim / DIMENSIONS_PER_CODE + 8) + 4.0 * cells * dim
