"""The distinct texts of a batch, each encoded once.

Shapes: B rows of the global batch, C columns of a draw, U distinct texts, D width of an embedding.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import ragged_positions
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.training.distributed import gather_embeddings, world


@dataclass(frozen=True)
class DistinctTexts:
    """The distinct texts of a global batch, shortest first.

    Attributes:
        columns: (U,) which column of the draws a text comes from.
        rows: (U,) its row in that column's table.
        lengths: (U,) its tokens, ascending.
        position: (B, C) where each drawn text stands among the U; -1 where nothing was drawn.
    """

    columns: Int64s
    rows: Int64s
    lengths: Int64s
    position: Int64s


def distinct_texts(draws: Int64s, tables: list[TokenTable]) -> DistinctTexts:
    """Find the distinct texts of ``draws`` (B, C), whose columns are rows of ``tables``."""
    drawn = draws >= 0
    hashes = np.zeros(draws.shape, dtype=np.uint64)
    for column, table in enumerate(tables):
        present = drawn[:, column]
        hashes[present, column] = table.hashes[draws[present, column]]
    _, first, inverse = np.unique(hashes[drawn], return_index=True, return_inverse=True)
    drawn_rows, drawn_columns = np.nonzero(drawn)
    columns = drawn_columns[first]
    rows = draws[drawn_rows[first], columns]
    lengths = np.empty(len(first), dtype=np.int64)
    for column, table in enumerate(tables):
        lengths[columns == column] = table.lengths(rows[columns == column])
    by_length = np.argsort(lengths, kind="stable")
    rank_of = np.empty_like(by_length)
    rank_of[by_length] = np.arange(len(by_length))
    position = np.full(draws.shape, -1, dtype=np.int64)
    position[drawn] = rank_of[inverse]
    return DistinctTexts(columns[by_length], rows[by_length], lengths[by_length], position)


def gather_tokens(columns: Int64s, rows: Int64s, tables: list[TokenTable]) -> TokenBatch:
    """Collect texts (u,) from several tables; ``columns`` says of which each row is."""
    by_column = np.argsort(columns, kind="stable")
    parts, lengths = [], np.empty(len(rows), dtype=np.int64)
    for column, table in enumerate(tables):
        chosen = by_column[columns[by_column] == column]
        parts.append(table.gather(rows[chosen]))
        lengths[chosen] = table.lengths(rows[chosen])
    starts = np.empty(len(rows), dtype=np.int64)
    starts[by_column] = np.cumsum(lengths[by_column]) - lengths[by_column]
    return TokenBatch(np.concatenate(parts)[ragged_positions(starts, lengths)], lengths)


def encode_distinct(
    encoder: nn.Module,
    texts: DistinctTexts,
    tables: list[TokenTable],
    device: torch.device,
    use_bf16: bool,
) -> Tensor:
    """Encode each distinct text once, shared out over the workers; returns (U, D) float32."""
    rank, num_workers = world()
    mine = slice(rank, None, num_workers)
    batch = gather_tokens(texts.columns[mine], texts.rows[mine], tables)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bf16):
        embeddings = encoder(batch)
    share = -(-len(texts.rows) // num_workers)
    padded = nn.functional.pad(embeddings, (0, 0, 0, share - len(embeddings)))
    return gather_embeddings(padded).transpose(0, 1).flatten(0, 1)[: len(texts.rows)]
