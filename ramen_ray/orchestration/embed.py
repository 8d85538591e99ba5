"""Embeddings of the texts of tables, written into one file by tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from ramen_ray.bases import Part
from ramen_ray.data.arrays import map_array, map_new_array
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.method.model.dual_encoder import (
    DualEncoder,
    TextEmbeddings,
    load_model,
    number_distinct,
)
from ramen_ray.orchestration.cluster.resources import (
    free_share,
    in_tasks,
    limited_attempts,
    user_errors,
)

TEXTS_PER_BATCH = 65_536
FEW_TEXTS = 500  # embedding them on a CPU takes less time than starting a task's process

View = Literal["queries", "ads"]
"""Which method of the model embeds a text: ``embed_queries`` or ``embed_ads``."""


@dataclass(frozen=True)
class TableRows:
    """Rows (n,) of a folder of texts' tokens, and how they are embedded."""

    table: Path
    rows: NDArray[np.int64] | range
    view: View


@dataclass(frozen=True)
class EmbeddingResources:
    """What a process that embeds holds; without CPUs and GPUs, one task runs at a time."""

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
    """Embed texts into an ``.npy`` file, table after table: here if they are few, else in tasks.

    All machines can reach the folders and the file. ``resources`` are those of a task; ``part``
    says which of the model's vectors texts get. Returns (texts of all tables, D), mapped from
    ``file``; a ClusterError if processes have died.
    """
    shape = (sum(len(table.rows) for table in tables), load_model(model, part=part).dim)
    map_new_array(file, dtype, shape)
    with owned_folder(file.parent) as attempts, user_errors():
        embed_all = partial(_embed_all, model, file, resources, part, attempts)
        batches = _batches(tables)
        num_tasks = len(batches)
        if resources.num_gpus:  # each task starts a process, which loads the model onto its GPU
            free = ray.available_resources().get("GPU", 0)
            num_tasks = min(num_tasks, max(int(free // resources.num_gpus), 1))
        elif shape[0] <= FEW_TEXTS:
            embed_all(batches)
            return map_array(file)
        tasks = [partial(embed_all, batches[task::num_tasks]) for task in range(num_tasks)]
        in_tasks(tasks, "embedding", resources.num_cpus, resources.num_gpus)
    return map_array(file)


def embed_distinct(
    model: Path,
    tables: list[Path],
    file: Path,
    use_bf16: bool,
    num_threads: int,
    part: Part = "encoder",
) -> list[TextEmbeddings]:
    """Embed the distinct texts of all ``tables`` as queries, with the cluster's free resources.

    Returns one per table, all sharing one (U, D) float16 array, mapped from ``file``.
    """
    rows, positions = number_distinct([TokenTable.open(table) for table in tables])
    parts = [TableRows(table, some, "queries") for table, some in zip(tables, rows, strict=True)]
    resources = EmbeddingResources(num_threads, **free_share(num_threads), use_bf16=use_bf16)
    # In half precision the error of a cosine is below 0.001.
    embeddings = embed_tables(model, parts, file, resources, np.float16, part)
    return [TextEmbeddings(embeddings, places) for places in positions]


Batch = tuple[int, TableRows]
"""Where the embeddings of some rows begin in the file, and the rows."""


def _batches(tables: Sequence[TableRows]) -> list[Batch]:
    batches = []
    first = 0
    for table in tables:
        for start in range(0, len(table.rows), TEXTS_PER_BATCH):
            rows = table.rows[start : start + TEXTS_PER_BATCH]
            batches.append((first, replace(table, rows=rows)))
            first += len(rows)
    return batches


def _embed_all(
    model: Path,
    file: Path,
    resources: EmbeddingResources,
    part: Part | None,
    attempts: Path,
    batches: list[Batch],
) -> None:
    """Embed batches into the file; ``attempts`` is a folder for marks of attempts."""
    has_gpu = resources.num_gpus > 0
    loaded: DualEncoder | None = None
    for first, table in batches:
        with limited_attempts(attempts, f"embedding of {table.table}, texts from {table.rows[0]}"):
            if loaded is None:
                torch.set_num_threads(resources.num_threads)
                loaded = load_model(model, part=part).to("cuda" if has_gpu else "cpu")
            embed = {"queries": loaded.embed_queries, "ads": loaded.embed_ads}[table.view]
            rows = np.asarray(table.rows)
            embeddings = embed(TokenTable.open(table.table), rows, resources.use_bf16 and has_gpu)
            whole = np.load(file, mmap_mode="r")
            with file.open("r+b") as opened:  # closing it shows other machines what was written
                opened.seek(whole.offset + first * whole.strides[0])
                opened.write(np.ascontiguousarray(embeddings, whole.dtype).data)
