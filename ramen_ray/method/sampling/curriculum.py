"""NGAME's curriculum: random batches at first, then batches of ever larger clusters of queries.

In the epoch before new clusters are made, the first worker keeps the embeddings that the steps
compute anyway, one of each query: (train queries, D) numbers of 16 bits on its device. Queries that
the epoch left out are clustered at random. The other workers are told the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ramen_ray.data.prepared.hashing import keyed_hash
from ramen_ray.method.sampling.batches import Batches
from ramen_ray.method.sampling.clustering import Clusters, balanced_clusters, count_levels
from ramen_ray.method.training.distributed import array_from_first_worker, world

CURRICULUM_FILE = "curriculum.pt"


@dataclass(frozen=True)
class ClusterSchedule:
    """When clusters are made, and of which size.

    Attributes:
        first_epoch: the first one of clustered batches, at least 1.
        refresh_every: epochs from one making of clusters to the next.
        cluster_size: queries of a cluster, at most, at first.
        double_at: epochs from which on clusters that are made are twice as large.
        num_epochs: of the whole run.
    """

    first_epoch: int
    refresh_every: int
    cluster_size: int
    double_at: Sequence[int]
    num_epochs: int

    def is_due(self, epoch: int) -> bool:
        """Say whether ``epoch`` (from 0) begins with new clusters."""
        since = epoch - self.first_epoch
        return since >= 0 and since % self.refresh_every == 0 and epoch < self.num_epochs

    def size_at(self, epoch: int) -> int:
        """Return the largest size of a cluster that is made before ``epoch``."""
        return self.cluster_size * 2 ** sum(epoch >= doubled for doubled in self.double_at)


@dataclass(frozen=True)
class Curriculum:
    """Brings the order of a run's batches along."""

    schedule: ClusterSchedule
    batches: Batches
    embedding_dim: int
    device: torch.device

    def advance(self, step: int) -> None:
        """Prepare the batches for what comes after ``step``.

        Every worker calls this before the first step and where a checkpoint will be written, before
        that. Embeddings of an earlier encoder than the present one make the clusters, as in NGAME.
        """
        epoch, position = divmod(step, self.batches.steps_per_epoch)
        if position == 0 and self.schedule.is_due(epoch):
            self.batches.clusters = self._make_clusters(epoch)
            self.batches.seen = None
        collects = self.schedule.is_due(epoch + 1) and world()[0] == 0
        if collects and self.batches.seen is None:
            shape = (len(self.batches.query_ids), self.embedding_dim)
            self.batches.seen = torch.zeros(shape, dtype=torch.float16, device=self.device)

    def _make_clusters(self, epoch: int) -> Clusters:
        num_queries = len(self.batches.query_ids)
        size = self.schedule.size_at(epoch)
        rows = np.empty(num_queries, dtype=np.int64)
        if self.batches.seen is not None:
            seed = int(keyed_hash((self.batches.seed,), np.array([epoch]))[0] >> np.uint64(1))
            rows = balanced_clusters(self.batches.seen, size, seed).rows
        rows = array_from_first_worker(rows, self.device)
        return Clusters(rows, 2 ** count_levels(num_queries, size))

    def save(self, folder: Path) -> None:
        """Write the clusters, and the embeddings kept so far, into a checkpoint's folder."""
        content: dict[str, Any] = {"seen": self.batches.seen}
        if self.batches.clusters is not None:
            content["rows"] = torch.from_numpy(self.batches.clusters.rows)
            content["num_clusters"] = self.batches.clusters.num_clusters
        torch.save(content, folder / CURRICULUM_FILE)

    def restore(self, folder: Path) -> None:
        """Go on from what :meth:`save` wrote."""
        content = torch.load(folder / CURRICULUM_FILE, weights_only=True, map_location="cpu")
        if "rows" in content:
            self.batches.clusters = Clusters(content["rows"].numpy(), content["num_clusters"])
        if content["seen"] is not None and world()[0] == 0:
            self.batches.seen = content["seen"].to(self.device)
