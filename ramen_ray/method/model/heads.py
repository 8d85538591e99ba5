"""Heads and classifiers: what is trained beside an encoder (UniDEC, section 3).

Heads are linear layers on its pooled states. Classifiers are a free vector for each ad, Ψ. On disk
each worker that held a share of them has a file ``vectors-FIRST.npy`` of its consecutive rows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.made_folder import read_json, write_json
from ramen_ray.method.distributed import to_device
from ramen_ray.method.model.pretrained import EncoderError

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


class Head(nn.Module):
    """A linear layer, with tanh or without: g1 and g2 of UniDEC (section 3), but no dropout."""

    def __init__(self, linear: nn.Linear, has_tanh: bool) -> None:
        super().__init__()
        self.linear = linear
        self.has_tanh = has_tanh

    @classmethod
    def orthogonal(cls, width: int, dim: int, has_tanh: bool, seed: int) -> "Head":
        """Draw a head from ``seed`` that maps ``width`` numbers to ``dim``, at most as many."""
        # An orthogonal projection about keeps which states are near each other.
        linear = nn.Linear(width, dim)
        nn.init.orthogonal_(linear.weight, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(linear.bias)
        return cls(linear, has_tanh)

    @classmethod
    def cut(cls, width: int, dim: int) -> "Head":
        """Make a head that begins as the first ``dim`` of ``width`` numbers, as Matryoshka's."""
        linear = nn.Linear(width, dim)
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
        return cls(linear, False)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.linear.out_features

    def forward(self, pooled: Tensor) -> Tensor:
        """Map pooled states (N, width) to vectors (N, D) float32, not normalised."""
        # In float32 also under autocast: heads are small, and softmax losses need the digits.
        with torch.autocast(pooled.device.type, enabled=False):
            vectors: Tensor = self.linear(pooled.float())
            return torch.tanh(vectors) if self.has_tanh else vectors

    def save(self, folder: Path) -> None:
        """Write a Dense module of sentence-transformers."""
        folder.mkdir(parents=True, exist_ok=True)
        activation = "activation.Tanh" if self.has_tanh else "linear.Identity"
        config = {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": True,
            "activation_function": f"torch.nn.modules.{activation}",
        }
        write_json(folder / CONFIG_FILE, config)
        save_file(
            {name: value.detach() for name, value in self.state_dict().items()},
            folder / WEIGHTS_FILE,
        )

    @classmethod
    def load(cls, folder: Path) -> "Head":
        """Load a Dense of sentence-transformers, with tanh or Identity, with a bias or without."""
        config = read_json(folder / CONFIG_FILE)
        linear = nn.Linear(config["in_features"], config["out_features"])
        head = cls(linear, not config.get("activation_function", "Tanh").endswith("Identity"))
        no_bias = {"linear.bias": torch.zeros(linear.out_features)}
        head.load_state_dict(no_bias | load_file(folder / WEIGHTS_FILE))
        return head


def unit(vectors: Tensor) -> Tensor:
    """Normalise each row of ``vectors`` (N, D)."""
    return functional.normalize(vectors, dim=-1)


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
    """Write ``rows`` (n, d) as those from row ``first`` on of the table ``name``."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}-{first:012d}.npy", rows.detach().cpu().numpy())


def read_rows(folder: Path, name: str, held: range) -> Tensor:
    """Read the rows ``held`` of the table ``name``."""
    parts: list[NDArray[Any]] = []
    for file in sorted(folder.glob(f"{name}-*.npy")):
        first = int(file.stem.rpartition("-")[2])
        rows = np.load(file, mmap_mode="c")
        parts.append(rows[max(held.start - first, 0) : max(held.stop - first, 0)])
    num_rows = sum(map(len, parts))
    if num_rows != len(held):
        raise EncoderError(
            f"{folder} has {num_rows} of {len(held)} rows of {name}; it is not whole"
        )
    filled = [part for part in parts if len(part)]
    # What one file has stays mapped: nothing is read until it is used.
    return torch.from_numpy(filled[0] if len(filled) == 1 else np.concatenate(parts))
