"""Shortlists: a task mines the train queries' hard negatives with the model of a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path

import faiss
import ray
import torch

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.retrieval.shortlists import open_shortlists, write_shortlists
from ramen_ray.method.sampling.batches import Sources
from ramen_ray.orchestration.background.task import BackgroundTask, Schedule, TaskContext

SHORTLISTS_FILE = "shortlists.npy"


@dataclass(frozen=True)
class ShortlistMining:
    """Makes the shortlists of all train queries; plain values, as it is sent to a task.

    Attributes:
        data: the prepared dataset.
        size: how many nearest ads of a query to search for.
        use_bf16: encode in bfloat16 where there is a GPU.
        num_threads: CPU threads to encode and search with.
    """

    data: Path
    size: int
    use_bf16: bool
    num_threads: int = 1

    def __call__(self, model: Path, folder: Path) -> dict[str, float]:
        """Write shortlists into ``folder``; returns no figures."""
        torch.set_num_threads(self.num_threads)
        faiss.omp_set_num_threads(self.num_threads)
        has_gpu = bool(ray.get_gpu_ids())
        write_shortlists(
            load_model(model).to("cuda" if has_gpu else "cpu"),
            Prepared(self.data),
            self.size,
            folder / SHORTLISTS_FILE,
            self.use_bf16 and has_gpu,
        )
        return {}

    def take(self, folder: Path, sources: Sources) -> Sources:
        """Draw from the shortlists that a call wrote into ``folder``."""
        return replace(sources, shortlists=open_shortlists(folder / SHORTLISTS_FILE))


def shortlist_task(config: RunConfig, run: TaskContext) -> BackgroundTask | None:
    """Return the task that makes a run's shortlists; None if the run has none."""
    base = config.base
    if base.parts.hard_negatives == "none":
        return None
    wait = base.refresh_mode == "synchronous"
    num_threads = config.workers.cpus_per_worker if wait else 1  # the workers' CPUs are free
    mining = ShortlistMining(run.data, base.parts.shortlist_size, run.use_bf16, num_threads)
    every = base.refresh_every
    schedule = Schedule(every, every, config.training.epochs, run.steps_per_epoch, wait)
    folder = run.folder / "shortlists"
    return BackgroundTask(
        "shortlists", folder, mining, mining.take, schedule, run.device, local=run.local
    )
