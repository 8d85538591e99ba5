"""Shortlists: a task mines the train queries' hard negatives with the model of a checkpoint.

If one process cannot hold the embeddings of the ads, the task has them searched in shards.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import faiss
import numpy as np
import ray
import torch
from numpy.typing import NDArray

from ramen_ray.config import EncoderConfig, RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.model.sentence_folder import pooled_width, read_sentence_folder
from ramen_ray.method.retrieval.search import costs_too_much, share_found
from ramen_ray.method.retrieval.shards import BYTES_PER_NUMBER, embedded_shards, shard_ranges
from ramen_ray.method.retrieval.shortlists import (
    RECALL,
    Shortlists,
    open_shortlists,
    sampled_queries,
    write_shortlists,
)
from ramen_ray.method.sampling.batches import DrawState
from ramen_ray.orchestration.background.task import BackgroundTask, Schedule, TaskContext
from ramen_ray.orchestration.cluster.resources import free_share
from ramen_ray.orchestration.embedding import EmbeddingResources, TableRows, embed_tables
from ramen_ray.orchestration.search import (
    ShardResources,
    query_blocks,
    search_shards,
    stream_blocks,
)

SHORTLISTS_FILE = "shortlists.npy"
EMBEDDINGS_FILE, SAMPLE_FILE = "embeddings.npy", "sample.npy"
ATTEMPTS = "attempts"


@dataclass(frozen=True)
class ShortlistMining:
    """Makes the shortlists of all train queries; plain values, as it is sent to a task.

    Attributes:
        data: the prepared dataset.
        size: how many nearest ads of a query to search for.
        use_bf16: encode in bfloat16 where there is a GPU.
        num_threads: CPU threads to encode and search with.
        gb_per_shard: cut the ads into shards of this size; None searches them in the task itself.
    """

    data: Path
    size: int
    use_bf16: bool
    num_threads: int = 1
    gb_per_shard: float | None = None

    def __call__(self, model: Path, folder: Path) -> dict[str, float]:
        """Write shortlists into ``folder``; returns their recall if the search is not exact."""
        if self.gb_per_shard is not None:
            return self._mine_shards(model, folder, self.gb_per_shard)
        torch.set_num_threads(self.num_threads)
        faiss.omp_set_num_threads(self.num_threads)
        has_gpu = bool(ray.get_gpu_ids())
        return write_shortlists(
            load_model(model).to("cuda" if has_gpu else "cpu"),
            Prepared(self.data),
            self.size,
            folder / SHORTLISTS_FILE,
            self.use_bf16 and has_gpu,
        )

    def take(self, folder: Path, draws: DrawState) -> DrawState:
        """Draw from the shortlists that a call wrote into ``folder``."""
        return replace(draws, shortlists=open_shortlists(folder / SHORTLISTS_FILE))

    def _mine_shards(self, model: Path, folder: Path, gb_per_shard: float) -> dict[str, float]:
        data, file, attempts = Prepared(self.data), folder / EMBEDDINGS_FILE, folder / ATTEMPTS
        queries, ads = data.queries["train"], data.candidates("validation")
        embeddings = self._embed(model, (len(queries), ads), file)
        is_exact = not costs_too_much(len(queries), len(ads), embeddings.shape[1])
        shards = embedded_shards(file, len(queries), gb_per_shard, is_exact)
        resources = ShardResources.of_free(self.num_threads)
        shortlists = Shortlists(data, self.size, folder / SHORTLISTS_FILE)
        sample = sampled_queries(len(queries))
        found = np.full((len(sample), self.size), -1)
        blocks = query_blocks(file, len(queries))
        for block in stream_blocks(shards, blocks, self.size, resources, attempts):
            start, stop = block["start"], block["stop"]
            shortlists.write(np.arange(start, stop), (block["ads"], block["scores"]))
            inside = (sample >= start) & (sample < stop)
            found[inside] = block["ads"][sample[inside] - start]
        shortlists.close()
        figures = {}
        if not is_exact:
            np.save(folder / SAMPLE_FILE, embeddings[sample])
            exactly = embedded_shards(file, len(queries), gb_per_shard)
            asked = folder / SAMPLE_FILE, len(sample)
            exact, _ = search_shards(exactly, asked, self.size, resources, attempts)
            figures = {RECALL: share_found(found, exact)}
            (folder / SAMPLE_FILE).unlink()
        for made in folder.glob(f"{file.stem}*"):
            made.unlink()
        attempts.rmdir()
        return figures

    def _embed(
        self, model: Path, texts: tuple[int, NDArray[np.int64]], file: Path
    ) -> NDArray[np.float32]:
        """Embed that many train queries, then these ads, into ``file``."""
        num_queries, ads = texts
        tokens = self.data / "tokens"
        tables = [
            TableRows(tokens / "queries" / "train", np.arange(num_queries), "queries"),
            TableRows(tokens / "ads", ads, "queries"),  # their texts, without classifiers
        ]
        share = free_share(self.num_threads)
        resources = EmbeddingResources(self.num_threads, **share, use_bf16=self.use_bf16)
        return embed_tables(model, tables, file, resources, part="encoder")


def shortlist_task(config: RunConfig, run: TaskContext) -> BackgroundTask | None:
    """Return the task that makes a run's shortlists; None if the run has none."""
    base, workers = config.base, config.workers
    if base.parts.hard_negatives == "none":
        return None
    wait = base.refresh_mode == "synchronous"
    mining = ShortlistMining(
        run.data,
        base.parts.shortlist_size,
        run.use_bf16,
        num_threads=workers.cpus_per_worker if wait else 1,  # the workers' CPUs are free
        gb_per_shard=workers.gb_per_shard if _needs_shards(config, run.data) else None,
    )
    every = base.refresh_every
    schedule = Schedule(every, every, config.training.epochs, run.steps_per_epoch, wait)
    return BackgroundTask(
        "shortlists",
        run.folder / "shortlists",
        mining,
        mining.take,
        schedule,
        run.device,
        has_own_tasks=mining.gb_per_shard is not None,
        local=run.local,
    )


def _needs_shards(config: RunConfig, data: Path) -> bool:
    num_ads = len(Prepared(data).candidates("validation"))
    num_bytes = embedding_dim(config.encoder) * BYTES_PER_NUMBER
    return len(shard_ranges(num_ads, num_bytes, config.workers.gb_per_shard)) > 1


def embedding_dim(config: EncoderConfig) -> int:
    """Return the width of an encoder's embeddings, without loading its weights."""
    folder = read_sentence_folder(config.pretrained, config.kind)
    dim = config.projection_dim or folder.dense_dim
    return dim or pooled_width(config.pretrained, folder)
