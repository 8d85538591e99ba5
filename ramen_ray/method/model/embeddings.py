"""Embeddings of several tables of texts, one for each distinct text."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.tokens import TokenTable


@dataclass(frozen=True)
class TextEmbeddings:
    """The embeddings of one table's texts."""

    embeddings: NDArray[Any]  # (U, D) unit-norm float16 or float32, one per distinct text
    positions: Int64s  # (texts,) the row of each text among them
    scales: NDArray[np.float32] | None = None  # (D,) factors of what is taken; None for 1

    def take(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the embeddings (n, D) float32 of the texts ``rows`` (n,)."""
        taken: NDArray[np.float32] = self.embeddings[self.positions[rows]].astype(np.float32)
        return taken if self.scales is None else taken * self.scales


def number_distinct(tables: list[TokenTable]) -> tuple[list[Int64s], list[Int64s]]:
    """Number the distinct texts of all ``tables``, by their hashes, in order of first appearance.

    Per table, returns the rows (n,) whose texts no earlier row has; and all rows' numbers.
    """
    hashes = np.concatenate([table.hashes for table in tables])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    first_seen = np.argsort(first)
    number = np.empty_like(first_seen)
    number[first_seen] = np.arange(len(first))
    bounds = np.cumsum([0, *map(len, tables)])
    rows = np.split(first[first_seen], np.searchsorted(first[first_seen], bounds[1:-1]))
    rows = [part - start for part, start in zip(rows, bounds[:-1], strict=True)]
    return rows, np.split(number[inverse], bounds[1:-1])
