"""Embeddings of the texts of tables, streamed through Ray Data into one file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
import ray.data
import torch
from numpy.typing import NDArray

from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.embeddings import TextEmbeddings, number_distinct
from ramen_ray.orchestration.cluster.resources import free_share, quiet_ray_data

TEXTS_PER_BLOCK = 65_536

View = Literal["queries", "ads", "texts"]
"""As what a model embeds a text: by ``embed_queries``, ``embed_ads`` or ``embed_texts``."""


@dataclass(frozen=True)
class TableRows:
    """Some texts of a table.

    Attributes:
        table: folder of the texts' tokens, which all machines see.
        rows: (n,) which of them.
        view: as what they are embedded.
    """

    table: Path
    rows: NDArray[np.int64]
    view: View


@dataclass(frozen=True)
class BlockTask:
    """What a task that embeds a batch of texts takes.

    Attributes:
        num_threads: CPU threads.
        num_cpus: CPUs that Ray gives it.
        num_gpus: GPUs that Ray gives it; without CPUs and GPUs, tasks run one at a time.
        use_bf16: encode in bfloat16 where it has a GPU.
    """

    num_threads: int
    num_cpus: float = 0
    num_gpus: float = 0
    use_bf16: bool = False


def embed_tables(
    model: Path,
    tables: Sequence[TableRows],
    file: Path,
    task: BlockTask,
    dtype: type[np.floating[Any]] = np.float32,
) -> NDArray[Any]:
    """Embed texts into ``file``, one table after the other; memory holds a few batches.

    Args:
        model: folder of the model, which all machines see.
        tables: the texts.
        file: an ``.npy`` file to write.
        task: what the tasks take that do it.
        dtype: of the embeddings.

    Returns:
        (n of all tables, D), mapped from ``file``.
    """
    quiet_ray_data()
    batches = _batches(tables)
    embedded = ray.data.from_items(batches, override_num_blocks=len(batches)).map(
        _Embed(model, tables, task, dtype),
        compute=ray.data.TaskPoolStrategy(None if task.num_cpus or task.num_gpus else 1),
        num_cpus=task.num_cpus,
        num_gpus=task.num_gpus,
    )
    shape = (sum(len(one.rows) for one in tables), load_model(model).dim)
    embeddings = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
    for batch in embedded.iter_rows():
        embeddings[batch["first"] :][: len(batch["embeddings"])] = batch["embeddings"]
    return embeddings


def embed_distinct(
    model: Path, tables: list[Path], file: Path, use_bf16: bool, num_threads: int
) -> list[TextEmbeddings]:
    """Embed the distinct texts of all ``tables`` into ``file``, with what the cluster has free.

    Half precision on disk: a cosine of two such embeddings is off by less than 0.001.

    Args:
        model: folder of the model, which all machines see, as they do the tables'.
        tables: folders of the texts' tokens.
        file: an ``.npy`` file to write, which the result maps.
        use_bf16: encode in bfloat16 where there is a GPU.
        num_threads: CPU threads of a task.

    Returns:
        One per table, all on the same (U, D) float16 array.
    """
    rows, positions = number_distinct([TokenTable.open(table) for table in tables])
    parts = [TableRows(table, some, "texts") for table, some in zip(tables, rows, strict=True)]
    task = BlockTask(num_threads, **free_share(num_threads), use_bf16=use_bf16)
    embeddings = embed_tables(model, parts, file, task, np.float16)
    return [TextEmbeddings(embeddings, part) for part in positions]


def _batches(tables: Sequence[TableRows]) -> list[dict[str, int]]:
    """Cut each table's rows into batches; ``first`` is where a batch's embeddings begin."""
    batches, first = [], 0
    for number, table in enumerate(tables):
        for start in range(0, len(table.rows), TEXTS_PER_BLOCK):
            stop = min(start + TEXTS_PER_BLOCK, len(table.rows))
            batches.append({"table": number, "start": start, "stop": stop, "first": first})
            first += stop - start
    return batches


@dataclass(frozen=True)
class _Embed:
    model: Path
    tables: Sequence[TableRows]
    task: BlockTask
    dtype: type[np.floating[Any]]

    def __call__(self, batch: dict[str, int]) -> dict[str, Any]:
        torch.set_num_threads(self.task.num_threads)
        has_gpu = bool(ray.get_gpu_ids())
        model = load_model(self.model).to("cuda" if has_gpu else "cpu")
        table = self.tables[batch["table"]]
        chosen = table.rows[batch["start"] : batch["stop"]]
        use_bf16 = self.task.use_bf16 and has_gpu
        embed = _view(model, table.view)
        embeddings = embed(TokenTable.open(table.table), chosen, use_bf16)
        return {"first": batch["first"], "embeddings": embeddings.astype(self.dtype)}


def _view(model: DualEncoder, view: View) -> Any:
    views = {
        "queries": model.embed_queries,
        "ads": model.embed_ads,
        "texts": model.embed_texts,
    }
    return views[view]
