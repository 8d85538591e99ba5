"""NGAME's curriculum: random batches at first, then batches of ever larger clusters of queries.

In the epoch before new clusters are made, the first worker keeps the query embeddings that the
steps compute anyway: (train queries, D) float16 in memory, not on a GPU. It sends the clusters to
the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramen_ray.data.prepared.hashing import keyed_hash
from ramen_ray.method.distributed import array_from_first_worker, world
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.clustering import Clusters, balanced_clusters, count_clusters
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_part import StepPart

MOST_BYTES_ON_DEVICE = 8 << 30
"""Of embeddings that are clustered at once; more are sent there in parts, again for each level."""
STEPS_AT_ONCE = 32
"""Steps whose embeddings go into memory together, as a copy from a GPU has to wait for it."""


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
            far (on a GPU less those of the last steps), zeros for others; None on other workers,
            and if no clusters are due next.
    """

    name = "curriculum"

    def __init__(
        self, schedule: ClusterSchedule, sampler: Sampler, dim: int, device: torch.device
    ) -> None:
        """Begin in random order; embeddings, of width ``dim``, are clustered on ``device``."""
        self.schedule = schedule
        self.clusters: Clusters | None = None
        self.seen: Tensor | None = None
        self._sampler = sampler
        self._rows = sampler.data.clicked_rows
        self._dim, self._device = dim, device
        self._coming: list[tuple[Tensor, Tensor]] = []

    def after(self, encoded: EncodedBatch) -> None:
        """Keep the embeddings of a batch's queries if clusters will be made from them."""
        if self.seen is None:
            return
        rows = torch.from_numpy(np.searchsorted(self._rows, encoded.batch.queries))
        vectors_BD = encoded.all_queries_BD.detach().to(self.seen.dtype)
        self._coming.append((rows, vectors_BD))
        if len(self._coming) == STEPS_AT_ONCE or not vectors_BD.is_cuda:
            self._keep()

    def _keep(self) -> None:
        for rows, vectors_BD in self._coming:
            assert self.seen is not None, "only collected ones are coming"
            self.seen[rows] = vectors_BD.cpu()
        self._coming.clear()

    def advance(self, step: int, draws: DrawState) -> DrawState:
        """Make new clusters if they are due at ``step``, and start collecting embeddings."""
        self._keep()
        epoch, position = divmod(step, self._sampler.steps_per_epoch)
        if position == 0 and self.schedule.is_due(epoch):
            self.clusters = self._make_clusters(epoch)
            self.seen = None
        collects = self.schedule.is_due(epoch + 1) and world()[0] == 0
        if collects and self.seen is None:
            shape = (len(self._rows), self._dim)
            self.seen = torch.zeros(shape, dtype=torch.float16)
        return replace(draws, clusters=self.clusters)

    def _make_clusters(self, epoch: int) -> Clusters:
        size, num_clusters = self.schedule.size_at(epoch), self._sampler.steps_per_epoch
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
        content: dict[str, Any] = {"seen": self.seen}
        if self.clusters is not None:
            content["rows"] = torch.from_numpy(self.clusters.rows)
            content["num_clusters"] = self.clusters.num_clusters
        return content

    def restore(self, folder: Path, content: dict[str, Any], draws: DrawState) -> DrawState:
        """Restore the clusters, from which batches are drawn, and the embeddings."""
        if "rows" in content:
            self.clusters = Clusters(content["rows"].numpy(), content["num_clusters"])
        if content["seen"] is not None and world()[0] == 0:
            self.seen = content["seen"]
        return replace(draws, clusters=self.clusters)
