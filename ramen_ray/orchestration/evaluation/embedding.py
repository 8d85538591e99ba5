"""Embeddings of all texts of some tables, streamed through Ray Data from what is free."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.metrics.evaluation import encode_rows
from ramen_ray.method.model.embeddings import TextEmbeddings, number_distinct
from ramen_ray.method.model.encoder import load_encoder
from ramen_ray.orchestration.cluster.resources import free_share, quiet_ray_data

TEXTS_PER_BLOCK = 65_536


def embed_distinct(
    encoder: Path, tables: list[Path], file: Path, use_bf16: bool, num_threads: int
) -> list[TextEmbeddings]:
    """Encode the distinct texts of all ``tables`` into ``file``.

    A task encodes a block of texts, on a GPU if one is free in part, else on CPUs that are free,
    else beside whatever runs. Memory holds a few blocks. Half precision on disk: a cosine of
    two such embeddings is off by less than 0.001.

    Args:
        encoder: folder of the encoder, which all machines see, as they do the tables'.
        tables: folders of the texts' tokens.
        file: an ``.npy`` file to write, which the result maps.
        use_bf16: encode in bfloat16 where there is a GPU.
        num_threads: CPU threads of a task.

    Returns:
        One per table, all on the same (U, D) float16 array.
    """
    quiet_ray_data()
    rows, positions = number_distinct([TokenTable.open(table) for table in tables])
    blocks = _blocks(rows)
    share = free_share(num_threads)
    encoded = ray.data.from_items(blocks, override_num_blocks=len(blocks)).map(
        _Encode(encoder, tables, rows, use_bf16, num_threads),
        compute=ray.data.TaskPoolStrategy(None if any(share.values()) else 1),
        **share,
    )
    shape = (sum(map(len, rows)), load_encoder(encoder).dim)
    embeddings = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
    for block in encoded.iter_rows():
        embeddings[block["first"] :][: len(block["embeddings"])] = block["embeddings"]
    return [TextEmbeddings(embeddings, part) for part in positions]


def _blocks(rows: list[Int64s]) -> list[dict[str, int]]:
    """Cut each table's rows into blocks; ``first`` is the number of a block's first text."""
    blocks, first = [], 0
    for table, chosen in enumerate(rows):
        for start in range(0, len(chosen), TEXTS_PER_BLOCK):
            stop = min(start + TEXTS_PER_BLOCK, len(chosen))
            blocks.append({"table": table, "start": start, "stop": stop, "first": first})
            first += stop - start
    return blocks


@dataclass(frozen=True)
class _Encode:
    encoder: Path
    tables: list[Path]
    rows: list[Int64s]
    use_bf16: bool
    num_threads: int

    def __call__(self, block: dict[str, int]) -> dict[str, Any]:
        torch.set_num_threads(self.num_threads)
        has_gpu = bool(ray.get_gpu_ids())
        encoder = load_encoder(self.encoder).to("cuda" if has_gpu else "cpu")
        texts = TokenTable.open(self.tables[block["table"]])
        chosen = self.rows[block["table"]][block["start"] : block["stop"]]
        embeddings = encode_rows(encoder, texts, chosen, self.use_bf16 and has_gpu)
        return {"first": block["first"], "embeddings": embeddings.astype(np.float16)}
