"""NGAME's curriculum: random batches at first, then batches of ever larger clusters of queries.

In the epoch before new clusters are made, the first worker keeps the query embeddings that the
steps compute anyway: (train queries, D) float16 in memory, not on a GPU. It sends the clusters to
the others. They are balanced, and made by halving: all of a level are cut in two together.

Shapes: N rows, D width of an embedding, C parts of a level, M rows of the largest, S rows of a part
from which its centres are found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ramen_ray.data.arrays import keyed_hash
from ramen_ray.method.distributed import array_from_first_worker, is_first_worker
from ramen_ray.method.sampling.batches import Clusters, Sampler, SamplingSources
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart

# Embeddings that are clustered at once; more are sent there in parts, again for each level.
MOST_BYTES_ON_DEVICE = 8 << 30
STEPS_AT_ONCE = 32  # whose embeddings go into memory together: a copy from a GPU waits for it
ROWS_AT_ONCE = 1 << 13
MAX_SAMPLE = 512  # as in faiss, the centres of large clusters are found on a sample
MAX_ITERATIONS = 20
LEAST_GAIN = 1e-4


@dataclass(frozen=True)
class ClusterSchedule:
    """When clusters are made (every so many epochs), and how large they are."""

    first_epoch: int  # the first with clustered batches, at least 1
    refresh_every: int
    # the most queries of a cluster, before any doubling; clusters of as many as a batch fill one
    # each
    cluster_size: int
    double_at: Sequence[int]  # epochs from which on new clusters are twice as large
    num_epochs: int  # of the whole run

    def is_due(self, epoch: int) -> bool:
        """Say whether ``epoch`` (from 0) begins with new clusters."""
        since = epoch - self.first_epoch
        return since >= 0 and since % self.refresh_every == 0 and epoch < self.num_epochs

    def size_at(self, epoch: int) -> int:
        """Return the largest size of the clusters that are made for ``epoch``."""
        return self.cluster_size * 2 ** sum(epoch >= doubled for doubled in self.double_at)


class Curriculum(StepPart):
    """Makes the clusters that a run's batches are cut from.

    Attributes:
        clusters: the current ones; None while the order is random.
        seen: (train queries with clicks, D) float16, the embeddings that this epoch has seen so
            far, zeros for others; None without any, on other workers, or if no clusters are due.
    """

    name = "curriculum"

    def __init__(
        self, schedule: ClusterSchedule, sampler: Sampler, dim: int, device: torch.device
    ) -> None:
        """Begin in random order; embeddings, of width ``dim``, are clustered on ``device``."""
        self.schedule = schedule
        self._sampler = sampler
        self.clusters: Clusters | None = None
        self.seen: Tensor | None = None
        self._rows = sampler.data.clicked_rows
        self._dim = dim
        self._device = device
        self._collects = False
        self._coming: list[tuple[Tensor, Tensor]] = []

    def after(self, encoded: EncodedBatch) -> None:
        """Keep the embeddings of a batch's queries if clusters will be made from them."""
        if not self._collects:
            return
        rows = torch.from_numpy(np.searchsorted(self._rows, encoded.batch.queries))
        vectors_BD = encoded.all_queries_BD.detach().half()
        self._coming.append((rows, vectors_BD))
        if len(self._coming) == STEPS_AT_ONCE or not vectors_BD.is_cuda:
            self._keep()

    def _keep(self) -> None:
        if self._coming and self.seen is None:  # not earlier: a checkpoint would have the zeros
            self.seen = torch.zeros(len(self._rows), self._dim, dtype=torch.float16)
        for rows, vectors_BD in self._coming:
            assert self.seen is not None, "made above"
            self.seen[rows] = vectors_BD.cpu()
        self._coming.clear()

    def prepare_next_steps(self, step: int, sources: SamplingSources) -> SamplingSources:
        """Make new clusters if they are due at ``step``, and start collecting embeddings."""
        self._keep()
        epoch, position = divmod(step, self._sampler.steps_per_epoch)
        if position == 0 and self.schedule.is_due(epoch):
            self.clusters = self._make_clusters(epoch)
            self.seen = None
        self._collects = self.schedule.is_due(epoch + 1) and is_first_worker()
        return replace(sources, clusters=self.clusters)

    def _make_clusters(self, epoch: int) -> Clusters:
        size = self.schedule.size_at(epoch)
        num_clusters = self._sampler.steps_per_epoch
        if size != self._sampler.batch_size:
            num_clusters = count_clusters(len(self._rows), size)
        rows = np.empty(len(self._rows), dtype=np.int64)
        if self.seen is not None:
            seed = int(keyed_hash((self._sampler.seed,), np.array([epoch]))[0] >> np.uint64(1))
            fits = self.seen.nbytes <= MOST_BYTES_ON_DEVICE
            seen = self.seen.to(self._device) if fits else self.seen
            rows = balanced_clusters(seen, num_clusters, seed, self._device).rows
        return Clusters(array_from_first_worker(rows), num_clusters)

    def save(self, folder: Path) -> dict[str, Any]:
        """Return the clusters, and the embeddings seen so far."""
        self._keep()
        content: dict[str, Any] = {"seen": self.seen, "collects": self._collects}
        if self.clusters is not None:
            content["rows"] = torch.from_numpy(self.clusters.rows)
            content["num_clusters"] = self.clusters.num_clusters
        return content

    def restore(
        self, folder: Path, content: dict[str, Any], sources: SamplingSources
    ) -> SamplingSources:
        """Restore the clusters, from which batches are drawn, and the embeddings."""
        if "rows" in content:
            self.clusters = Clusters(content["rows"].numpy(), content["num_clusters"])
        if is_first_worker():
            self.seen = content["seen"]
            self._collects = content["collects"]
        return replace(sources, clusters=self.clusters)


def balanced_clusters(
    embeddings: Tensor, num_clusters: int, seed: int, device: torch.device | None = None
) -> Clusters:
    """Cut the rows in two, then each part, until every part is one of ``num_clusters``, at most N.

    Cutting is spherical 2-means with sides of given sizes: rows are ordered by how much more
    similar they are to one centre than to the other. ``embeddings`` (N, D), unit-norm or zeros, of
    any float type and on any device, go to ``device`` a part at a time; None for where they are.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(len(embeddings), device=device or embeddings.device)
    for level in range((num_clusters - 1).bit_length()):
        sides = torch.arange(2 ** (level + 1) + 1) * num_clusters // 2 ** (level + 1)
        rows = cut_in_two(embeddings, rows, sides, generator)
    return Clusters(rows.cpu().numpy(), num_clusters)


def count_clusters(num_rows: int, cluster_size: int) -> int:
    """Return how many clusters halving makes until none has more than ``cluster_size`` rows."""
    return 2 ** (-(-num_rows // cluster_size) - 1).bit_length()


def cut_in_two(
    embeddings: Tensor, rows: Tensor, sides: Tensor, generator: torch.Generator
) -> Tensor:
    """Reorder the rows (N,) of each part so that its two sides are parts of the next level.

    ``sides`` (2 C + 1,) int64 has the first cluster of each side, and K; a part is two sides.
    """
    bounds = sides[::2] * len(rows) // sides[-1]
    starts = bounds[:-1]
    sizes = bounds.diff()
    num_left = sides.diff()[::2]
    num_clusters = sides[::2].diff()
    narrowest = int(sizes.min())
    widest = int(sizes.max())
    places = torch.arange(widest)
    ordered = []
    for parts in torch.arange(len(starts)).split(max(ROWS_AT_ONCE // widest, 1)):
        present_CM = (places < sizes[parts, None]).to(rows.device)
        places_CM = (starts[parts, None] + places).clamp(max=len(rows) - 1)
        rows_CM = rows[places_CM.to(rows.device)]
        sample = torch.randperm(narrowest, generator=generator)[:MAX_SAMPLE].to(rows.device)
        sample_CSD = _gather(embeddings, rows_CM[:, sample])
        num_left_C = -(-len(sample) * num_left[parts] // num_clusters[parts])
        difference_CD1 = _differences(sample_CSD, num_left_C)[:, :, None]
        pieces = rows_CM.split(ROWS_AT_ONCE, dim=1)
        products = [torch.bmm(_gather(embeddings, piece), difference_CD1) for piece in pieces]
        scores_CM = torch.cat(products, dim=1)[:, :, 0]
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


def _gather(embeddings: Tensor, rows: Tensor) -> Tensor:
    """Return ``embeddings[rows]`` as float32 where ``rows`` are, whole rows at once."""
    chosen = embeddings.index_select(0, rows.flatten().to(embeddings.device))
    return chosen.to(rows.device).float().view(*rows.shape, -1)
