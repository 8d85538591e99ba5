"""Balanced clusters of similar queries, by halving: how NGAME gets hard negatives into batches.

All clusters of a level are halved together. Shapes: N rows, D width of an embedding, C clusters, M
rows of the largest cluster, S rows of a cluster from which its centres are found.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ramen_ray.data.arrays import Int64s

ROWS_AT_ONCE = 1 << 13
MAX_SAMPLE = 512
MAX_ITERATIONS = 20
LEAST_GAIN = 1e-4


@dataclass(frozen=True)
class Clusters:
    """Rows in clusters whose sizes differ by at most one.

    Attributes:
        rows: (N,) int64, a permutation of the rows, one cluster after another.
        num_clusters: C; cluster i is ``rows[i * N // C : (i + 1) * N // C]``.
    """

    rows: Int64s
    num_clusters: int


def balanced_clusters(embeddings: Tensor, cluster_size: int, seed: int) -> Clusters:
    """Halve the rows, then the halves, until no cluster has more than ``cluster_size`` rows.

    A cluster is halved by spherical 2-means with sides of the same size: its rows are ordered by
    how much more similar they are to one centre than to the other, and cut in the middle. The
    centres of large clusters are found on a sample, as in faiss.

    Args:
        embeddings: (N, D) unit-norm, of any float type and on any device; a row of zeros is similar
            to nothing and may end up in any cluster.
        cluster_size: largest size of a cluster.
        seed: seeds the samples and the first centres.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(len(embeddings), device=embeddings.device)
    num_levels = count_levels(len(embeddings), cluster_size)
    for level in range(num_levels):
        rows = halve(embeddings, rows, 2**level, generator)
    return Clusters(rows.cpu().numpy(), 2**num_levels)


def count_levels(num_rows: int, cluster_size: int) -> int:
    """Return how many times to halve until no cluster has more than ``cluster_size`` rows."""
    return (-(-num_rows // cluster_size) - 1).bit_length()


def halve(
    embeddings: Tensor, rows: Tensor, num_clusters: int, generator: torch.Generator
) -> Tensor:
    """Reorder each cluster's rows so that its two halves are clusters of the next level.

    Args:
        embeddings: (N, D).
        rows: (N,) int64, one cluster after another.
        num_clusters: C.
        generator: draws the samples and the first centres.

    Returns:
        (N,) int64.
    """
    bounds = torch.arange(num_clusters + 1, device=rows.device) * len(rows) // num_clusters
    sizes = bounds.diff()
    narrowest, widest = int(sizes.min()), int(sizes.max())
    places = torch.arange(widest, device=rows.device)
    halved = []
    for clusters in torch.arange(num_clusters).split(max(ROWS_AT_ONCE // widest, 1)):
        present_CM = places < sizes[clusters, None]
        rows_CM = rows[(bounds[clusters, None] + places).clamp(max=len(rows) - 1)]
        sample = torch.randperm(narrowest, generator=generator)[:MAX_SAMPLE].to(rows.device)
        sample_CSD = _gather(embeddings, rows_CM[:, sample])
        scores_CM = _scores(embeddings, rows_CM, _differences(sample_CSD))
        order = scores_CM.masked_fill(~present_CM, -torch.inf).argsort(descending=True, stable=True)
        halved.append(rows_CM.gather(1, order)[present_CM])
    return torch.cat(halved)


def _differences(sample_CSD: Tensor) -> Tensor:
    """Find the centres of each cluster's two halves by 2-means; return their difference (C, D)."""
    num_left = (sample_CSD.shape[1] + 1) // 2
    total_CD = sample_CSD.sum(dim=1)
    difference_CD = sample_CSD[:, 0] - sample_CSD[:, -1]
    reached_C = torch.zeros_like(total_CD[:, 0])
    for _ in range(MAX_ITERATIONS):
        scores_CS = torch.bmm(sample_CSD, difference_CD[:, :, None])[:, :, 0]
        left = scores_CS.argsort(descending=True, stable=True)[:, :num_left]
        in_left_CS = torch.zeros_like(scores_CS).scatter_(1, left, 1.0)
        left_CD = torch.bmm(in_left_CS[:, None], sample_CSD)[:, 0]
        right_CD = total_CD - left_CD
        difference_CD = normalize(left_CD, dim=1) - normalize(right_CD, dim=1)
        similarity_C = (left_CD.norm(dim=1) + right_CD.norm(dim=1)) / sample_CSD.shape[1]
        if bool((similarity_C - reached_C < LEAST_GAIN).all()):
            break
        reached_C = similarity_C
    return difference_CD


def _scores(embeddings: Tensor, rows_CM: Tensor, difference_CD: Tensor) -> Tensor:
    """Return the products (C, M) of rows with their cluster's difference."""
    parts = [
        torch.bmm(_gather(embeddings, some), difference_CD[:, :, None])[:, :, 0]
        for some in rows_CM.split(ROWS_AT_ONCE, dim=1)
    ]
    return torch.cat(parts, dim=1)


def _gather(embeddings: Tensor, rows: Tensor) -> Tensor:
    """Return ``embeddings[rows]`` as float32; whole rows at once, which is faster on CPUs."""
    return embeddings.index_select(0, rows.flatten()).view(*rows.shape, -1).float()
