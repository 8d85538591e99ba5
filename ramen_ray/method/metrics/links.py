"""How good a linker is: figures that stand beside every figure of OAK."""

from typing import Any

from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.metrics.ranking import find_hits, precision_at, recall_at

LINKER_DEPTH = 10


def link_figures(
    anchors: NDArray[Any], num_links: int, edges: Csr | None, is_known: Booleans
) -> dict[str, float]:
    """Measure a linker's anchors of the queries of a split.

    Args:
        anchors: (queries, at least 10) best first, -1 after the last.
        num_links: how many of them are links.
        edges: the queries' true edges; None if they are not known.
        is_known: (anchors,) whether a train query is linked to an anchor.

    Returns:
        ``known``, the share of links to such anchors, and over the queries with true edges P@3 and
        R@10.
    """
    links = anchors[:, :num_links]
    found = {"known": float(is_known[links[links >= 0]].mean())}
    if edges is None:
        return found
    rows = edges.filled_rows
    hits, degrees = find_hits(anchors, edges)[rows], edges.degrees(rows)
    found["P@3"] = float(precision_at(hits, 3).mean())
    found["R@10"] = float(recall_at(hits, degrees, LINKER_DEPTH).mean())
    return found
