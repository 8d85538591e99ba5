"""The bases: what a run takes hard negatives from, besides random batches.

``ngame`` orders the queries so that a batch holds similar ones. ``ance`` draws ads from shortlists
that a background task makes from a checkpoint's encoder; until the first are there it draws none.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import faiss
import ray
import torch

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.encoder import load_encoder
from ramen_ray.method.retrieval.shortlists import write_shortlists
from ramen_ray.method.sampling.batches import Batches
from ramen_ray.method.sampling.curriculum import ClusterSchedule, Curriculum
from ramen_ray.orchestration.background.results import BackgroundResults, Schedule

SHORTLISTS_FILE = "shortlists.npy"


def cluster_schedule(config: RunConfig) -> ClusterSchedule:
    """Return when ``ngame`` makes clusters, and of which size."""
    base = config.base
    return ClusterSchedule(
        base.first_clustered_epoch,
        base.refresh_every,
        base.cluster_size,
        base.double_cluster_size_at,
        config.training.epochs,
    )


def build_curriculum(
    config: RunConfig, batches: Batches, embedding_dim: int, device: torch.device
) -> Curriculum | None:
    """Return what orders the queries of ``batches``; None where their order stays random."""
    if config.base.kind != "ngame":
        return None
    return Curriculum(cluster_schedule(config), batches, embedding_dim, device)


@dataclass(frozen=True)
class ShortlistMining:
    """Makes the shortlists of all train queries; plain values, for it travels to a task.

    Attributes:
        data: the prepared dataset.
        size: nearest ads of a query to look at.
        use_bf16: encode in bfloat16 where there is a GPU.
        num_threads: CPU threads to encode and search with.
    """

    data: Path
    size: int
    use_bf16: bool
    num_threads: int = 1

    def __call__(self, encoder: Path, folder: Path) -> dict[str, float]:
        """Write shortlists into ``folder``; there is nothing to report of them."""
        torch.set_num_threads(self.num_threads)
        faiss.omp_set_num_threads(self.num_threads)
        has_gpu = bool(ray.get_gpu_ids())
        write_shortlists(
            load_encoder(encoder).to("cuda" if has_gpu else "cpu"),
            Prepared(self.data),
            self.size,
            folder / SHORTLISTS_FILE,
            self.use_bf16 and has_gpu,
        )
        return {}


def mined_shortlists(
    config: RunConfig,
    mining: ShortlistMining,
    folder: Path,
    steps_per_epoch: int,
    device: torch.device,
) -> BackgroundResults | None:
    """Return the shortlists' generations, kept in ``folder``; None where a run has none."""
    base = config.base
    if base.kind != "ance":
        return None
    wait = base.refresh_mode == "synchronous"
    if wait:  # the workers' CPUs are free meanwhile
        mining = replace(mining, num_threads=config.workers.cpus_per_worker)
    every = base.refresh_every
    schedule = Schedule(every, every, config.training.epochs, steps_per_epoch, wait)
    return BackgroundResults("shortlists", folder, mining, schedule, device)
