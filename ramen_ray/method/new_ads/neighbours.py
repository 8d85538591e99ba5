"""Which seen ads help to represent an ad: those near in text, or chosen by their classifiers.

Seen ads, those with a classifier, are numbered by their rows in a table; -1 stands for no ad. An ad
is never its own neighbour, as a new ad has no classifier.

Shapes: n ads to represent, S seen ads, K neighbours, D width of a vector.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from ramen_ray.data.arrays import Int64s, best_of_each
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.retrieval.index import choose_kind, filled_index

SPARE = 8  # searched besides the K nearest, for ads that are equally near
DECIMALS = 5  # of a similarity; ads that differ by less are equally near
ADS_PER_PRODUCT = 512

Vectors = NDArray[np.float32]


class Ranked(NamedTuple):
    """Neighbours of n ads, best first: rows (n, K), -1 after the last, and scores (n, K)."""

    rows: Int64s
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class Lookup:
    """How the neighbours of an ad are found."""

    neighbours: int = 3  # K, the largest number that is kept
    shortlist: int = 200  # how many of the nearest ads by text classifiers choose from
    # τ; a classifier w chooses the text z if w·z is above it. None takes the nearest by text
    threshold: float | None = None


class SeenAds:
    """The seen ads: ids (S,), ascending, embeddings (S, D), unit norm, and classifiers (S, D)."""

    def __init__(self, ids: Int64s, embeddings: Vectors, classifiers: Vectors) -> None:
        self.ids = ids
        self.embeddings = embeddings
        self.classifiers = classifiers
        self._index = filled_index(choose_kind(len(ids)), embeddings)

    def rows_of(self, ads: Int64s) -> Int64s:
        """Return the rows (n,) of ``ads`` (n,); -1 for those that are not seen."""
        places = np.minimum(np.searchsorted(self.ids, ads), len(self.ids) - 1)
        return np.where(self.ids[places] == ads, places, -1)

    def nearest(self, embeddings: Vectors, count: int, own_rows: Int64s | None = None) -> Ranked:
        """Return the nearest seen ads by text; of equally near ones, those of lower rows.

        ``embeddings`` (n, D) float32 have unit norm. An ad's own row, of ``own_rows`` (n,), is left
        out; -1 if it is not seen.
        """
        searched = min(count + 1 + SPARE, len(self.ids))
        _, rows = self._index.search(np.ascontiguousarray(embeddings), searched)
        scores = similarities(embeddings, self.embeddings, rows).round(DECIMALS)
        if own_rows is not None:
            scores[rows == own_rows[:, None]] = -np.inf
        return best(rows, scores, count)


def similarities(vectors: Vectors, table: Vectors, rows: Int64s) -> NDArray[np.float64]:
    """Return the products (n, K) of ``vectors`` (n, D) and ``rows`` (n, K) of a table (S, D).

    Each is the same whatever block an ad is in; -inf for row -1.
    """
    products = np.empty(rows.shape)
    for start in range(0, len(rows), ADS_PER_PRODUCT):
        part = slice(start, start + ADS_PER_PRODUCT)
        gathered = table[rows[part]]
        products[part] = np.matmul(gathered, vectors[part, :, None])[:, :, 0]
    return np.where(rows >= 0, products, -np.inf)


def best(rows: Int64s, scores: NDArray[Any], count: int) -> Ranked:
    """Order ``rows`` (n, m) by score, then by row, and keep ``count``; -inf is never kept."""
    order = np.lexsort((rows, -scores), axis=1)[:, :count]
    rows = np.take_along_axis(rows, order, 1)
    scores = np.take_along_axis(scores, order, 1)
    missing = [(0, 0), (0, count - rows.shape[1])]
    rows = np.pad(rows, missing, constant_values=-1)
    scores = np.pad(scores, missing, constant_values=-np.inf)
    return Ranked(np.where(np.isfinite(scores), rows, -1), scores)


def find_neighbours(
    seen: SeenAds, lookup: Lookup, embeddings: Vectors, own_rows: Int64s | None = None
) -> Int64s:
    """Find the neighbours of ads as if they were new: rows (n, K), best first, -1 after the last.

    The ads have ``embeddings`` (n, D), and ``own_rows`` as in :meth:`SeenAds.nearest`.
    """
    count = lookup.neighbours
    if lookup.threshold is None:
        return seen.nearest(embeddings, count, own_rows).rows
    near = seen.nearest(embeddings, max(lookup.shortlist, count), own_rows).rows
    scores = similarities(embeddings, seen.classifiers, near).round(DECIMALS)
    return best(near, np.where(scores > lookup.threshold, scores, -np.inf), count).rows


def clicked_together(clicks: Csr, embeddings: Vectors, count: int) -> Ranked:
    """Find each seen ad's nearest by text, ``count`` of those that share a train query with it.

    ``clicks`` are train query rows x seen rows; ``embeddings`` (S, D) have unit norm. An ad is
    never its own neighbour.
    """
    num_ads = len(embeddings)
    queries, ads = clicks.gather(np.arange(clicks.num_rows))
    matrix = csr_matrix(
        (np.ones(len(ads), dtype=np.float32), (queries, ads)), (clicks.num_rows, num_ads)
    )
    together = (matrix.T @ matrix).tocoo()
    is_pair = together.row != together.col
    ad = together.row[is_pair]
    other = together.col[is_pair]
    cosines = np.einsum("pd,pd->p", embeddings[ad], embeddings[other]).round(DECIMALS)
    neighbours = Ranked(np.full((num_ads, count), -1), np.full((num_ads, count), -np.inf))
    kept, ranks = best_of_each(ad, count, -cosines, other)
    neighbours.rows[ad[kept], ranks] = other[kept]
    neighbours.scores[ad[kept], ranks] = cosines[kept]
    return neighbours
