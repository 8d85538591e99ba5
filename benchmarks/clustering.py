"""Speed of balanced clustering, which NGAME's batches need, against faiss's k-means.

Rows of 384 numbers, drawn around two levels of centres, in clusters of at most 128. The other side
does what the project would do with faiss: halve every cluster by its Kmeans with two
centres (spherical, on a sample of 512 rows, its default) and cut in the middle. Both use one thread
and are measured in processor time, so that other work on the machine matters little. `cosine` is
the mean similarity of two rows of a cluster, `random_cosine` that of random clusters of the same
size; `ratio` is faiss's seconds over ours.

    python -m benchmarks.clustering [--rows 1000000] [--cluster-size 128]
"""

import argparse
import time
from collections.abc import Callable

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.common import alternate, finish, in_fresh_process, medians
from ramen_ray.method.sampling.clustering import (
    MAX_ITERATIONS,
    Clusters,
    balanced_clusters,
    count_clusters,
)

DIM = 384
ROWS_PER_CENTRE = 40
ROWS_AT_ONCE = 1 << 16
ROUNDS = 3


def main() -> None:
    """Cluster the same rows both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--cluster-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    sizes = (arguments.rows, arguments.cluster_size)
    figures = in_fresh_process(compare, *sizes, arguments.rounds)
    finish(figures["faiss_seconds"] / figures["seconds"], figures)


def compare(num_rows: int, cluster_size: int, rounds: int) -> dict[str, float]:
    """Return the seconds and the mean similarity within clusters of both ways."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    embeddings, num_clusters = make_rows(num_rows), count_clusters(num_rows, cluster_size)
    print("generated", flush=True)

    def measure(cluster: Callable[[], Clusters]) -> dict[str, float]:
        started = time.process_time()
        clusters = cluster()
        seconds = time.process_time() - started
        return {"seconds": seconds, "cosine": mean_cosine(embeddings, clusters)}

    found = alternate(
        rounds,
        {
            "ours": lambda: measure(lambda: balanced_clusters(embeddings, num_clusters, seed=0)),
            "faiss": lambda: measure(lambda: halve_with_faiss(embeddings.numpy(), num_clusters)),
        },
    )
    shuffled = Clusters(np.random.default_rng(0).permutation(num_rows), num_clusters)
    return {
        "rows": num_rows,
        "clusters": num_clusters,
        **medians(found["ours"]),
        **{f"faiss_{name}": value for name, value in medians(found["faiss"]).items()},
        "random_cosine": mean_cosine(embeddings, shuffled),
    }


def make_rows(num_rows: int) -> Tensor:
    """Draw unit-norm rows (rows, 384) in two levels of groups."""
    draw = torch.Generator().manual_seed(0)
    num_centres = max(num_rows // ROWS_PER_CENTRE, 1)
    above = torch.randn(num_centres // 100 + 1, DIM, generator=draw)
    of_above = torch.arange(num_centres) // 100
    centres = normalize(torch.randn(num_centres, DIM, generator=draw) + 2 * above[of_above], dim=1)
    rows = torch.empty(num_rows, DIM)
    for some in rows.split(ROWS_AT_ONCE):
        chosen = torch.randint(num_centres, (len(some),), generator=draw)
        some.copy_(centres[chosen]).add_(0.04 * torch.randn(len(some), DIM, generator=draw))
        some.copy_(normalize(some, dim=1))
    return rows


def halve_with_faiss(embeddings: NDArray[np.float32], num_clusters: int) -> Clusters:
    """Halve the clusters one after another, with faiss's centres."""
    rows = np.arange(len(embeddings))
    for level in range((num_clusters - 1).bit_length()):
        bounds = np.arange(2**level + 1) * len(rows) // 2**level
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            members = embeddings[rows[start:stop]]
            kmeans = faiss.Kmeans(
                DIM, 2, niter=MAX_ITERATIONS, spherical=True, min_points_per_centroid=1
            )
            kmeans.train(members)
            scores = members @ (kmeans.centroids[0] - kmeans.centroids[1])
            rows[start:stop] = rows[start:stop][np.argsort(-scores, kind="stable")]
    return Clusters(rows, num_clusters)


def mean_cosine(embeddings: Tensor, clusters: Clusters) -> float:
    """Return the mean similarity of two rows of a cluster, a row with itself included."""
    num_rows, num_clusters = len(clusters.rows), clusters.num_clusters
    bounds = np.arange(num_clusters + 1) * num_rows // num_clusters
    sizes = torch.from_numpy(np.diff(bounds))
    cluster_of = torch.repeat_interleave(torch.arange(num_clusters), sizes)
    sums = torch.zeros(num_clusters, DIM)
    for some, numbers in zip(
        torch.from_numpy(clusters.rows).split(ROWS_AT_ONCE),
        cluster_of.split(ROWS_AT_ONCE),
        strict=True,
    ):
        sums.index_add_(0, numbers, embeddings[some])
    return float((sums.norm(dim=1) / sizes).square().mean())


if __name__ == "__main__":
    main()
