"""Pruned graphs: the run's own graph, pruned by the model of one checkpoint after another.

Each task prunes the graph that the run began with, so a pruned edge can come back later.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.model.dual_encoder import TextEmbeddings
from ramen_ray.method.sampling.batches import DrawState
from ramen_ray.method.sampling.training_data import Regularizer, open_graphs
from ramen_ray.orchestration.background.task import BackgroundTask, Schedule, TaskContext
from ramen_ray.orchestration.embed import embed_distinct

EMBEDDINGS_FILE = "embeddings.npy"


@dataclass(frozen=True)
class GraphPruning:
    """Prunes a run's graph; plain values, as it is sent to a task.

    Edges with a cosine of at most ``prune_threshold`` are dropped.
    """

    data: Path  # prepared
    edges: Path  # that the run began with
    regularizers: list[Regularizer]
    prune_threshold: float
    use_bf16: bool
    num_threads: int = 1

    def __call__(self, model: Path, folder: Path) -> dict[str, float]:
        """Write each regulariser's pruned graph, and return figures of what is left."""
        report: dict[str, float] = {}
        nodes, anchors = self._embed(model, folder / EMBEDDINGS_FILE)
        for one in self.regularizers:
            edges = Csr.open(self.edges / one.path)
            texts = nodes[one.side], anchors[one.anchor_set]
            pruned = prune(edges, *texts, self.prune_threshold, folder / one.path)
            report[f"share_kept/{one.path}"] = pruned.share_kept
            report[f"nodes_left_bare/{one.path}"] = pruned.num_left_bare
        (folder / EMBEDDINGS_FILE).unlink()
        return report

    def take(self, folder: Path, draws: DrawState) -> DrawState:
        """Draw from the graphs that a call wrote into ``folder``."""
        return replace(draws, graphs=open_graphs(folder, self.regularizers))

    def _embed(
        self, model: Path, file: Path
    ) -> tuple[dict[str, TextEmbeddings], dict[str, TextEmbeddings]]:
        """Return the embeddings of the nodes by side, and of the anchors by set."""
        tokens = self.data / "tokens"
        nodes = {"query": tokens / "queries" / "train", "ad": tokens / "ads"}
        sides = sorted({one.side for one in self.regularizers})
        sets = sorted({one.anchor_set for one in self.regularizers})
        tables = [*(nodes[side] for side in sides), *(tokens / "anchors" / name for name in sets)]
        embeddings = embed_distinct(model, tables, file, self.use_bf16, self.num_threads)
        of_nodes, of_anchors = embeddings[: len(sides)], embeddings[len(sides) :]
        return dict(zip(sides, of_nodes, strict=True)), dict(zip(sets, of_anchors, strict=True))


def pruning_task(config: RunConfig, run: TaskContext) -> BackgroundTask | None:
    """Return the task that prunes a run's graph; None if the run does not prune."""
    settings = config.pruning
    if settings.mode == "never" or not run.regularizers:
        return None
    wait = settings.mode == "synchronous"
    pruning = GraphPruning(
        run.data,
        run.edges,
        run.regularizers,
        settings.prune_threshold,
        run.use_bf16,
        num_threads=config.workers.cpus_per_worker if wait else 1,  # the workers' CPUs are free
    )
    first, every = settings.warmup_epochs, settings.every_epochs
    epochs, steps_per_epoch = config.training.epochs, run.steps_per_epoch
    schedule = Schedule(first, every, epochs, steps_per_epoch, wait, "pruning.mode")
    return BackgroundTask(
        "graph",
        run.folder / "graphs",
        pruning,
        pruning.take,
        schedule,
        run.device,
        has_own_tasks=True,
        local=run.local,
    )
