"""Embeddings of several tables of texts on disk, each distinct text encoded once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.tokens import TokenTable
from ramen_ray.method.encoder import Encoder
from ramen_ray.method.evaluation import encode_rows

TEXTS_PER_BLOCK = 65_536


@dataclass(frozen=True)
class TextEmbeddings:
    """The embeddings of one table's texts.

    Attributes:
        embeddings: (U, D) unit-norm float16 or float32, one a distinct text.
        positions: (texts,) which of them is each text's.
    """

    embeddings: NDArray[Any]
    positions: Int64s

    def take(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the embeddings (n, D) float32 of the texts ``rows`` (n,)."""
        return self.embeddings[self.positions[rows]].astype(np.float32)


def embed_distinct(
    encoder: Encoder, tables: list[TokenTable], file: Path, use_bf16: bool = False
) -> list[TextEmbeddings]:
    """Encode the distinct texts of all ``tables`` into ``file``; memory holds one block of them.

    Half precision on disk: a cosine of two such embeddings is off by less than 0.001.

    Args:
        encoder: encodes on the device where its parameters are.
        tables: the texts; equal ones, of whatever table, have equal hashes.
        file: an ``.npy`` file to write, which the result maps.
        use_bf16: encode in bfloat16.

    Returns:
        One per table, all on the same (U, D) float16 array.
    """
    hashes = np.concatenate([table.hashes for table in tables])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    first_seen = np.argsort(first)
    place = np.empty_like(first_seen)
    place[first_seen] = np.arange(len(first))
    distinct, positions = first[first_seen], place[inverse]
    embeddings = np.lib.format.open_memmap(
        file, mode="w+", dtype=np.float16, shape=(len(distinct), encoder.dim)
    )
    bounds = np.cumsum([0, *map(len, tables)])
    for table, start, stop in zip(tables, bounds, bounds[1:], strict=False):
        here = slice(*np.searchsorted(distinct, (start, stop)))
        for begin in range(here.start, here.stop, TEXTS_PER_BLOCK):
            block = slice(begin, min(begin + TEXTS_PER_BLOCK, here.stop))
            embeddings[block] = encode_rows(encoder, table, distinct[block] - start, use_bf16)
    return [TextEmbeddings(embeddings, part) for part in np.split(positions, bounds[1:-1])]
