"""What a rival is: how it is prepared and fitted, and what a fitted one answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.corpus import Corpus
from ramen_ray.data.arrays import Int64s

Settings = Mapping[str, Any]


class Fitted(Protocol):
    """A rival that can answer."""

    model_bytes: int  # of what turns a query into an answer, without the index
    index_bytes: int  # of what is kept of the ads

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        """Return the ads (queries, k) of each query, best first, -1 after the last."""
        ...


def nothing(_: Corpus) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Rival:
    """One row of the table."""

    # trains and indexes; gets the corpus, what was prepared, settings, seed and threads
    fit: Callable[[Corpus, Any, Settings, int, int], Fitted]
    settings: tuple[Settings, ...]  # that validation chooses from, documented practice first
    prepare: Callable[[Corpus], Any] = nothing  # once and not timed: environments, tokens
    is_random: bool = False


def best(scores: NDArray[Any], k: int) -> Int64s:
    """Return the columns (rows, k) of the highest positive scores (rows, n), -1 after the last."""
    k = min(k, scores.shape[1])
    found = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    values = np.take_along_axis(scores, found, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    ordered = np.take_along_axis(found, order, 1)
    return np.where(np.take_along_axis(values, order, 1) > 0, ordered, -1)


def use_threads(threads: int) -> None:
    """Train and search with so many threads."""
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def size_on_disk(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
