"""Seconds of an evaluation over those of its matrix product alone.

Random unit-norm embeddings, clicks and filter pairs, of which a query has 2 each. In turns,
`evaluation` finds the 100 best ads of each query, drops the filter pairs and measures all metrics,
and `product` multiplies the same embeddings by numpy, in blocks that fit a processor's cache, and
keeps nothing. Both use all cores, and take time in proportion to the queries; embedding the texts
comes on top.

    python -m benchmarks.evaluation [--ads 320000] [--queries 8192] [--rounds 3]
"""

from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import alternate, finish, options, seconds_of
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.method.metrics.ranking import KS
from ramen_ray.method.retrieval.search import drop_filtered, most_filters, search

WIDTH, PAIRS_PER_QUERY = 384, 2
QUERIES_PER_BLOCK, ADS_PER_BLOCK = 1024, 1024


def main() -> None:
    asked = options(__doc__, ads=320_000, queries=8192, rounds=3)
    draw = np.random.default_rng(0)
    queries, ads = (
        draw.standard_normal((count, WIDTH), dtype=np.float32)
        for count in (asked.queries, asked.ads)
    )
    for rows in (queries, ads):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = random_pairs(draw, asked.queries, asked.ads)
    clicks = random_pairs(draw, asked.queries, asked.ads)
    counts = np.bincount(clicks[:, 1], minlength=asked.ads)
    truth = Csr.from_pairs(clicks[:, 0], clicks[:, 1], asked.queries)
    ground_truth = GroundTruth.from_clicks(truth, counts, asked.queries, Propensity())

    def evaluate() -> None:
        found = search(queries, ads, max(KS) + most_filters(pairs))
        ground_truth.metrics(drop_filtered(found, pairs, max(KS))[0])

    sides = {
        "product": lambda: seconds_of(lambda: multiply(queries, ads)),
        "evaluation": lambda: seconds_of(evaluate),
    }
    product, evaluation = map(median, alternate(asked.rounds, sides).values())
    figures = {"product_s": product, "evaluation_s": evaluation}
    finish(evaluation / product, {**vars(asked), **figures})


def random_pairs(draw: np.random.Generator, num_queries: int, num_ads: int) -> Int64s:
    """Return (pairs, 2) of (query row, ad)."""
    queries = np.repeat(np.arange(num_queries), PAIRS_PER_QUERY)
    ads = draw.integers(0, num_ads, len(queries))
    return np.unique(np.stack([queries, ads], axis=1), axis=0)


def multiply(queries: NDArray[np.float32], ads: NDArray[np.float32]) -> None:
    product = np.empty((QUERIES_PER_BLOCK, ADS_PER_BLOCK), dtype=np.float32)
    for first in range(0, len(queries), QUERIES_PER_BLOCK):
        some = queries[first : first + QUERIES_PER_BLOCK]
        for start in range(0, len(ads), ADS_PER_BLOCK):
            others = ads[start : start + ADS_PER_BLOCK]
            np.matmul(some, others.T, out=product[: len(some), : len(others)])


if __name__ == "__main__":
    main()
