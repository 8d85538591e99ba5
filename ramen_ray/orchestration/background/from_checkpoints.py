"""What background tasks compute from a checkpoint: pruned graphs, and shortlists.

Each task prunes the graph that the run began with, so a pruned edge can come back later. Shortlists
have the train queries' hard negatives; ads that one process cannot hold are searched in shards.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import faiss
import ray
import torch

from ramen_ray.data.arrays import Int64s, map_array
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.retrieval.search import TopK, costs_too_much, search
from ramen_ray.method.retrieval.shards import embedded_shards
from ramen_ray.method.retrieval.shortlists import keep_shortlists, write_shortlists
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.training_data import Regularizer, open_graphs
from ramen_ray.orchestration.background.task import Work
from ramen_ray.orchestration.cluster.resources import free_share
from ramen_ray.orchestration.embed import (
    EmbeddingResources,
    TableRows,
    embed_distinct,
    embed_tables,
)
from ramen_ray.orchestration.sharded_search import search_shards

SHORTLISTS_FILE = "shortlists.npy"
EMBEDDINGS_FILE = "embeddings.npy"


@dataclass(frozen=True)
class GraphPruning(Work):
    """Prunes a run's graph: edges with a cosine of at most ``prune_threshold`` are dropped."""

    data: Path  # prepared
    edges: Path  # that the run began with
    regularizers: list[Regularizer]
    prune_threshold: float
    use_bf16: bool
    num_threads: int = 1

    def __call__(self, model: Path, folder: Path) -> dict[str, float]:
        """Write each regulariser's pruned graph, and return figures of what is left."""
        tokens = self.data / "tokens"
        file = folder / EMBEDDINGS_FILE
        sides = {"query": tokens / "queries" / "train", "ad": tokens / "ads"}
        nodes = [sides[regularizer.side] for regularizer in self.regularizers]
        anchors = [tokens / "anchors" / regularizer.anchor_set for regularizer in self.regularizers]
        tables = [*sorted({*nodes}), *sorted({*anchors})]
        embedded = embed_distinct(model, tables, file, self.use_bf16, self.num_threads)
        texts = dict(zip(tables, embedded, strict=True))
        report: dict[str, float] = {}
        for regularizer, node, anchor in zip(self.regularizers, nodes, anchors, strict=True):
            edges = Csr.open(self.edges / regularizer.path)
            place = folder / regularizer.path
            left = prune(edges, texts[node], texts[anchor], self.prune_threshold, place)
            report |= {f"{name}/{regularizer.path}": value for name, value in left.items()}
        file.unlink()
        return report

    def take(self, folder: Path, sources: SamplingSources) -> SamplingSources:
        """Draw from the graphs that a call wrote into ``folder``."""
        return replace(sources, graphs=open_graphs(folder, self.regularizers))


@dataclass(frozen=True)
class ShortlistMining(Work):
    """Makes all train queries' shortlists of ``size`` ads; searches shards, if given their GB."""

    data: Path  # prepared
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

    def take(self, folder: Path, sources: SamplingSources) -> SamplingSources:
        """Draw from the shortlists that a call wrote into ``folder``."""
        return replace(sources, shortlists=map_array(folder / SHORTLISTS_FILE))

    def _mine_shards(self, model: Path, folder: Path, gb_per_shard: float) -> dict[str, float]:
        data = Prepared(self.data)
        file = folder / EMBEDDINGS_FILE
        queries = data.queries["train"]
        ads = data.candidates("validation")
        tables = [
            TableRows(data.path / "tokens" / "queries" / "train", range(len(queries)), "queries"),
            TableRows(data.path / "tokens" / "ads", ads, "queries"),  # texts, without classifiers
        ]
        share = free_share(self.num_threads)
        resources = EmbeddingResources(self.num_threads, **share, use_bf16=self.use_bf16)
        embeddings = embed_tables(model, tables, file, resources, part="encoder")
        is_exact = not costs_too_much(len(queries), len(ads), embeddings.shape[1])
        shards = embedded_shards(file, len(queries), gb_per_shard, is_exact)
        blocks = search_shards(shards, file, len(queries), self.size, self.num_threads)

        def exact(sample: Int64s) -> TopK:
            return search(embeddings[sample], embeddings[len(queries) :], self.size)

        shortlists = folder / SHORTLISTS_FILE
        figures = keep_shortlists(blocks, data, self.size, shortlists, None if is_exact else exact)
        for made in folder.glob(f"{file.stem}*"):
            made.unlink()
        return figures
