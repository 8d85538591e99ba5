"""Classifiers: a free vector for each ad, Ψ in UniDEC (section 3), trained beside the encoder.

On disk each worker that held a share has a file ``vectors-FIRST.npy`` of its consecutive rows; any
number of workers can read them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.method.devices import to_device
from ramen_ray.method.model.pretrained import EncoderError

IS_TRAINED_FILE = "is_trained.npy"


@dataclass(frozen=True)
class Classifiers:
    """The classifiers of all ads, or a worker's share of them."""

    vectors: Tensor  # (held rows, d) float32, of consecutive ads from ``first`` on; not normalised
    first: int
    # (ads,) bool, the ads whose classifiers answer for them. Those of ads without a train click are
    # only ever pushed away from queries, so their texts answer instead
    is_trained: Booleans

    @property
    def held(self) -> range:
        """The ads whose classifiers are here."""
        return range(self.first, self.first + len(self.vectors))

    @property
    def is_share(self) -> bool:
        """Whether other workers hold the other ads."""
        return len(self.vectors) < len(self.is_trained)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.vectors.shape[1]

    def holds(self, ads: Int64s) -> Booleans:
        """Mark which of ``ads`` (n,) are held; returns (n,) bool."""
        return (ads >= self.held.start) & (ads < self.held.stop)

    def take(self, ads: Int64s) -> Tensor:
        """Return the vectors (n, d) of held ``ads`` (n,)."""
        return self.vectors[to_device(ads - self.first, self.vectors.device)]

    def save(self, folder: Path) -> None:
        """Write the held rows into ``folder``; workers with shares each write their own."""
        write_rows(folder, "vectors", self.first, self.vectors)
        np.save(folder / IS_TRAINED_FILE, self.is_trained)

    @classmethod
    def open(cls, folder: Path, held: range | None = None) -> "Classifiers":
        """Open the rows ``held``, or all, from whichever files have them."""
        if not (folder / IS_TRAINED_FILE).is_file():
            raise EncoderError(f"{folder} has no classifiers: it has no {IS_TRAINED_FILE}")
        is_trained = np.load(folder / IS_TRAINED_FILE)
        held = range(len(is_trained)) if held is None else held
        return cls(read_rows(folder, "vectors", held), held.start, is_trained)


def write_rows(folder: Path, name: str, first: int, rows: Tensor) -> None:
    """Write ``rows`` (n, d), the first of which is row ``first`` of the table ``name``."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}-{first:012d}.npy", rows.detach().cpu().numpy())


def read_rows(folder: Path, name: str, held: range) -> Tensor:
    """Read the rows ``held`` of the table ``name``."""
    parts: list[NDArray[Any]] = []
    for file in sorted(folder.glob(f"{name}-*.npy")):
        first = int(file.stem.rpartition("-")[2])
        rows = np.load(file, mmap_mode="c")
        parts.append(rows[max(held.start - first, 0) : max(held.stop - first, 0)])
    found = sum(map(len, parts))
    if found != len(held):
        raise EncoderError(f"{folder} has {found} of {len(held)} rows of {name}; it is not whole")
    whole = [part for part in parts if len(part)]
    # What one file has stays mapped: nothing is read until it is used.
    return torch.from_numpy(whole[0] if len(whole) == 1 else np.concatenate(parts))
