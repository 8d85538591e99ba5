"""Balanced clusters of similar queries, by halving: how NGAME gets hard negatives into batches.

All clusters of a level are cut in two together. Shapes: N rows, D width of an embedding, C parts of
a level, M rows of the largest, S rows of a part from which its centres are found.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ramen_ray.data.arrays import Int64s

ROWS_AT_ONCE = 1 << 13
MAX_SAMPLE = 512  # as in faiss, the centres of large clusters are found on a sample
MAX_ITERATIONS = 20
LEAST_GAIN = 1e-4


@dataclass(frozen=True)
class Clusters:
    """Rows in clusters whose sizes differ by at most one."""

    rows: Int64s  # (N,) int64, a permutation of the rows, one cluster after another
    num_clusters: int  # K; cluster i is ``rows[i * N // K : (i + 1) * N // K]``


def balanced_clusters(
    embeddings: Tensor, num_clusters: int, seed: int, device: torch.device | None = None
) -> Clusters:
    """Cut the rows in two, then each part, until every part is one of ``num_clusters``, at most N.

    Cutting is spherical 2-means with sides of given sizes: rows are ordered by how much more
    similar they are to one centre than to the other. ``embeddings`` (N, D) are unit-norm, of any
    float type and on any device; a row of zeros is similar to nothing and may end up in any
    cluster. They go to ``device`` a part at a time; None for where they are.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(len(embeddings), device=device or embeddings.device)
    for level in range((num_clusters - 1).bit_length()):
        sides = torch.arange(2 ** (level + 1) + 1) * num_clusters // 2 ** (level + 1)
        rows = cut_in_two(embeddings, rows, sides, generator)
    return Clusters(rows.cpu().numpy(), num_clusters)


def count_clusters(num_rows: int, cluster_size: int) -> int:
    """Return the clusters of halving until none has more than ``cluster_size`` rows."""
    return 2 ** (-(-num_rows // cluster_size) - 1).bit_length()


def cut_in_two(
    embeddings: Tensor, rows: Tensor, sides: Tensor, generator: torch.Generator
) -> Tensor:
    """Reorder the rows (N,) of each part so that its two sides are parts of the next level.

    ``sides`` (2 C + 1,) int64 has the first cluster of each side, and K; a part is two sides.
    """
    bounds = sides[::2] * len(rows) // sides[-1]
    starts, sizes = bounds[:-1], bounds.diff()
    left, both = sides.diff()[::2], sides[::2].diff()
    narrowest, widest = int(sizes.min()), int(sizes.max())
    places = torch.arange(widest)
    ordered = []
    for parts in torch.arange(len(starts)).split(max(ROWS_AT_ONCE // widest, 1)):
        present_CM = (places < sizes[parts, None]).to(rows.device)
        places_CM = (starts[parts, None] + places).clamp(max=len(rows) - 1)
        rows_CM = rows[places_CM.to(rows.device)]
        sample = torch.randperm(narrowest, generator=generator)[:MAX_SAMPLE].to(rows.device)
        sample_CSD = _gather(embeddings, rows_CM[:, sample])
        num_left_C = -(-len(sample) * left[parts] // both[parts])
        scores_CM = _scores(embeddings, rows_CM, _differences(sample_CSD, num_left_C))
        order = scores_CM.masked_fill(~present_CM, -torch.inf).argsort(descending=True, stable=True)
        ordered.append(rows_CM.gather(1, order)[present_CM])
    return torch.cat(ordered)


def _differences(sample_CSD: Tensor, num_left_C: Tensor) -> Tensor:
    """Find the centres of each part's two sides by 2-means; return their difference (C, D)."""
    is_left_CS = (torch.arange(sample_CSD.shape[1]) < num_left_C[:, None]).to(sample_CSD)
    total_CD = sample_CSD.sum(dim=1)
    difference_CD = sample_CSD[:, 0] - sample_CSD[:, -1]
    reached_C = torch.zeros_like(total_CD[:, 0])
    for _ in range(MAX_ITERATIONS):
        scores_CS = torch.bmm(sample_CSD, difference_CD[:, :, None])[:, :, 0]
        order_CS = scores_CS.argsort(descending=True, stable=True)
        in_left_CS = torch.zeros_like(scores_CS).scatter_(1, order_CS, is_left_CS)
        left_CD = torch.bmm(in_left_CS[:, None], sample_CSD)[:, 0]
        right_CD = total_CD - left_CD
        difference_CD = normalize(left_CD, dim=1) - normalize(right_CD, dim=1)
        similarity_C = (left_CD.norm(dim=1) + right_CD.norm(dim=1)) / sample_CSD.shape[1]
        if bool((similarity_C - reached_C < LEAST_GAIN).all()):
            break
        reached_C = similarity_C
    return difference_CD


def _scores(embeddings: Tensor, rows_CM: Tensor, difference_CD: Tensor) -> Tensor:
    """Return the products (C, M) of rows with their part's difference."""
    pieces = [
        torch.bmm(_gather(embeddings, some), difference_CD[:, :, None])[:, :, 0]
        for some in rows_CM.split(ROWS_AT_ONCE, dim=1)
    ]
    return torch.cat(pieces, dim=1)


def _gather(embeddings: Tensor, rows: Tensor) -> Tensor:
    """Return ``embeddings[rows]`` as float32 where ``rows`` are, whole rows at once."""
    chosen = embeddings.index_select(0, rows.flatten().to(embeddings.device))
    return chosen.to(rows.device).float().view(*rows.shape, -1)
