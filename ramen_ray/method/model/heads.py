"""Heads: linear layers on the pooled states of an encoder, one for each kind of vector."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"


class Head(nn.Module):
    """A linear layer, with tanh or without: g1 and g2 of UniDEC (section 3), but no dropout."""

    def __init__(self, linear: nn.Linear, has_tanh: bool) -> None:
        super().__init__()
        self.linear = linear
        self.has_tanh = has_tanh

    @classmethod
    def orthogonal(cls, width: int, dim: int, has_tanh: bool, seed: int) -> "Head":
        """Make a head from ``width`` to ``dim``, at most ``width``, that is drawn from ``seed``."""
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
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(
            {name: value.detach() for name, value in self.state_dict().items()},
            folder / WEIGHTS_FILE,
        )

    @classmethod
    def load(cls, folder: Path) -> "Head":
        """Load a Dense of sentence-transformers, with tanh or Identity, with a bias or without."""
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        linear = nn.Linear(config["in_features"], config["out_features"])
        head = cls(linear, not config.get("activation_function", "Tanh").endswith("Identity"))
        no_bias = {"linear.bias": torch.zeros(linear.out_features)}
        head.load_state_dict(no_bias | load_file(folder / WEIGHTS_FILE))
        return head


def unit(vectors: Tensor) -> Tensor:
    """Normalise each row of ``vectors`` (N, D)."""
    return functional.normalize(vectors, dim=-1)
