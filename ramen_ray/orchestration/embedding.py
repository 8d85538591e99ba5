"""Embeddings of the texts of tables, written into one file by tasks or actors of Ray Data."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
import ray.data
import torch
from numpy.typing import NDArray

from ramen_ray.bases import Part
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.data.store.mapped_files import map_new_array
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.embeddings import TextEmbeddings, number_distinct
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import free_share, quiet_ray_data, user_errors

TEXTS_PER_BATCH = 65_536
FEW_TEXTS = 500  # embedding them on a CPU takes less time than starting a task's process

View = Literal["queries", "ads"]
"""Which method of the model embeds a text: ``embed_queries`` or ``embed_ads``."""


@dataclass(frozen=True)
class TableRows:
    """Some texts of a table.

    Attributes:
        table: folder of the texts' tokens, which all machines can reach.
        rows: (n,) the rows of the table; a range needs no memory.
        view: how they are embedded.
    """

    table: Path
    rows: NDArray[np.int64] | range
    view: View


@dataclass(frozen=True)
class EmbeddingResources:
    """Resources of a process that embeds texts.

    Attributes:
        num_threads: CPU threads.
        num_cpus: CPUs that Ray gives it.
        num_gpus: GPUs that Ray gives it; without CPUs and GPUs, tasks run one at a time.
        use_bf16: encode in bfloat16 if it has a GPU.
    """

    num_threads: int
    num_cpus: float = 0
    num_gpus: float = 0
    use_bf16: bool = False


def embed_tables(
    model: Path,
    tables: Sequence[TableRows],
    file: Path,
    resources: EmbeddingResources,
    dtype: type[np.floating[Any]] = np.float32,
    part: Part | None = None,
) -> NDArray[Any]:
    """Embed texts into ``file``, one table after another; each task writes what it has embedded.

    Few texts are embedded in this process, unless tasks would have a GPU. In place of tasks on a
    GPU, each of which would start a process, there are actors.

    Args:
        model: folder of the model, which all machines can reach.
        tables: the texts.
        file: an ``.npy`` file to write, in a folder that all machines can reach.
        resources: resources of each task.
        dtype: type of the embeddings.
        part: which of the model's vectors they get; None for all that it has.

    Returns:
        (texts of all tables, D), mapped from ``file``.

    Raises:
        ClusterError: processes have died.
    """
    shape = (sum(len(one.rows) for one in tables), load_model(model, part=part).dim)
    map_new_array(file, dtype, shape)
    work, batches = _Work(model, tables, file, resources, part), _batches(tables)
    if shape[0] <= FEW_TEXTS and not resources.num_gpus:
        here = work.load()
        for batch in batches:
            _embed(batch, work, here)
    else:
        shutil.rmtree(work.attempts, ignore_errors=True)  # left by a killed call
        try:
            with user_errors():
                (_in_actors if resources.num_gpus else _in_tasks)(batches, work)
        finally:
            shutil.rmtree(work.attempts, ignore_errors=True)
    embeddings: NDArray[Any] = np.load(file, mmap_mode="r")
    return embeddings


def embed_distinct(
    model: Path,
    tables: list[Path],
    file: Path,
    use_bf16: bool,
    num_threads: int,
    part: Part = "encoder",
) -> list[TextEmbeddings]:
    """Embed the distinct texts of all ``tables`` into ``file``, with the cluster's free resources.

    They are stored in half precision: the error of a cosine is below 0.001.

    Args:
        model: folder of the model, which all machines can reach.
        tables: folders of the texts' tokens, likewise.
        file: see :func:`embed_tables`; the result maps it.
        use_bf16: encode in bfloat16 where there is a GPU.
        num_threads: CPU threads of a task.
        part: which of the model's vectors they get, as queries.

    Returns:
        One per table, all sharing one (U, D) float16 array.
    """
    rows, positions = number_distinct([TokenTable.open(table) for table in tables])
    parts = [TableRows(table, some, "queries") for table, some in zip(tables, rows, strict=True)]
    resources = EmbeddingResources(num_threads, **free_share(num_threads), use_bf16=use_bf16)
    embeddings = embed_tables(model, parts, file, resources, np.float16, part)
    return [TextEmbeddings(embeddings, places) for places in positions]


def _batches(tables: Sequence[TableRows]) -> list[dict[str, int]]:
    """Cut each table's rows into batches; ``first`` is where a batch's embeddings begin."""
    batches, first = [], 0
    for number, table in enumerate(tables):
        for start in range(0, len(table.rows), TEXTS_PER_BATCH):
            stop = min(start + TEXTS_PER_BATCH, len(table.rows))
            batches.append({"table": number, "start": start, "stop": stop, "first": first})
            first += stop - start
    return batches


@dataclass(frozen=True)
class _Work:
    """What all batches have in common; plain values."""

    model: Path
    tables: Sequence[TableRows]
    file: Path
    resources: EmbeddingResources
    part: Part | None

    @property
    def attempts(self) -> Path:
        """A folder for marks of attempts, until all is embedded."""
        return self.file.with_suffix(".attempts")

    def load(self) -> DualEncoder:
        """Load the model, in the process that embeds."""
        torch.set_num_threads(self.resources.num_threads)
        device = "cuda" if ray.get_gpu_ids() else "cpu"
        return load_model(self.model, part=self.part).to(device)


def _embed(batch: dict[str, int], work: _Work, model: DualEncoder) -> None:
    """Embed a batch and write it to its place."""
    table = work.tables[batch["table"]]
    chosen = np.asarray(table.rows[batch["start"] : batch["stop"]])
    use_bf16 = work.resources.use_bf16 and bool(ray.get_gpu_ids())
    embeddings = _view(model, table.view)(TokenTable.open(table.table), chosen, use_bf16)
    rows = np.load(work.file, mmap_mode="r")
    with work.file.open("r+b") as opened:  # closing it shows other machines what was written
        opened.seek(rows.offset + batch["first"] * rows.strides[0])
        opened.write(np.ascontiguousarray(embeddings, rows.dtype).data)


def _name(batch: dict[str, int], work: _Work) -> str:
    return f"embedding of {work.tables[batch['table']].table}, texts from {batch['start']}"


class _Embedder:
    """An actor that loads the model once and embeds one batch after another."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        with limited_attempts(work.attempts, f"loading of {work.model}"):
            self.model = work.load()

    def __call__(self, batch: dict[str, int]) -> dict[str, int]:
        with limited_attempts(self.work.attempts, _name(batch, self.work)):
            _embed(batch, self.work, self.model)
        return batch


def _in_actors(batches: list[dict[str, int]], work: _Work) -> None:
    """Embed batches in actors of Ray Data, as many as there is room for."""
    quiet_ray_data()
    ray.data.from_items(batches, override_num_blocks=len(batches)).map(
        _Embedder,
        fn_constructor_args=(work,),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=len(batches)),
        num_cpus=work.resources.num_cpus,
        num_gpus=work.resources.num_gpus,
    ).materialize()


def _in_tasks(batches: list[dict[str, int]], work: _Work) -> None:
    """Embed batches in tasks of Ray Data."""

    def embed(batch: dict[str, int]) -> dict[str, int]:
        with limited_attempts(work.attempts, _name(batch, work)):
            _embed(batch, work, work.load())
        return batch

    quiet_ray_data()
    ray.data.from_items(batches, override_num_blocks=len(batches)).map(
        embed,
        compute=ray.data.TaskPoolStrategy(None if work.resources.num_cpus else 1),
        num_cpus=work.resources.num_cpus,
    ).materialize()


def _view(model: DualEncoder, view: View) -> Any:
    return {"queries": model.embed_queries, "ads": model.embed_ads}[view]
