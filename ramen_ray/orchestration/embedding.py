"""Embeddings of the texts of tables, streamed through Ray Data into one file."""

from collections.abc import Iterator, Sequence
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
FEW_TEXTS = 500  # embedding them on a CPU takes less than the start of a task's process

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
    """What a task that embeds a block of texts takes.

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
    """Embed texts into ``file``, one table after the other; memory holds a few blocks.

    Few texts are embedded in this process, unless tasks would have a GPU.

    Args:
        model: folder of the model, which all machines see.
        tables: the texts.
        file: an ``.npy`` file to write.
        task: what the tasks take that do it.
        dtype: of the embeddings.

    Returns:
        (n of all tables, D), mapped from ``file``.
    """
    shape = (sum(len(one.rows) for one in tables), load_model(model).dim)
    embeddings = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
    blocks, embed = _blocks(tables), _Embed(model, tables, task, dtype)
    is_small = len(embeddings) <= FEW_TEXTS and not task.num_gpus
    for block in map(embed, blocks) if is_small else _stream(blocks, embed):
        embeddings[block["first"] :][: len(block["embeddings"])] = block["embeddings"]
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


def _blocks(tables: Sequence[TableRows]) -> list[dict[str, int]]:
    """Cut each table's rows into blocks; ``first`` is where a block's embeddings begin."""
    blocks, first = [], 0
    for number, table in enumerate(tables):
        for start in range(0, len(table.rows), TEXTS_PER_BLOCK):
            stop = min(start + TEXTS_PER_BLOCK, len(table.rows))
            blocks.append({"table": number, "start": start, "stop": stop, "first": first})
            first += stop - start
    return blocks


@dataclass(frozen=True)
class _Embed:
    model: Path
    tables: Sequence[TableRows]
    task: BlockTask
    dtype: type[np.floating[Any]]

    def __call__(self, block: dict[str, int]) -> dict[str, Any]:
        torch.set_num_threads(self.task.num_threads)
        has_gpu = bool(ray.get_gpu_ids())
        model = load_model(self.model).to("cuda" if has_gpu else "cpu")
        table = self.tables[block["table"]]
        chosen = table.rows[block["start"] : block["stop"]]
        use_bf16 = self.task.use_bf16 and has_gpu
        embed = _view(model, table.view)
        embeddings = embed(TokenTable.open(table.table), chosen, use_bf16)
        return {"first": block["first"], "embeddings": embeddings.astype(self.dtype)}


def _stream(blocks: list[dict[str, int]], embed: _Embed) -> Iterator[dict[str, Any]]:
    """Embed blocks in tasks of Ray Data; they come in any order."""
    quiet_ray_data()
    task = embed.task
    embedded = ray.data.from_items(blocks, override_num_blocks=len(blocks)).map(
        embed,
        compute=ray.data.TaskPoolStrategy(None if task.num_cpus or task.num_gpus else 1),
        num_cpus=task.num_cpus,
        num_gpus=task.num_gpus,
    )
    yield from embedded.iter_rows()


def _view(model: DualEncoder, view: View) -> Any:
    views = {
        "queries": model.embed_queries,
        "ads": model.embed_ads,
        "texts": model.embed_texts,
    }
    return views[view]
