"""Combiners: one vector from an ad's text embedding and the classifiers of its neighbours.

Shapes: N ads, K neighbours, D width of a vector.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["attention", "transformer", "mean"]

HIDDEN = 2048
DROPOUT = 0.1


class Combiner(nn.Module):
    """Maps text embeddings (N, D), neighbours' vectors (N, K, D) and a mask (N, K) to (N, D).

    A kind mixes an ad's text with its neighbours and averages the mixed vectors.

    ``mean`` mixes nothing and has no parameters: up to scale, it is the sum. ``attention`` is one
    layer of self-attention and a linear map (IRENE's draft), added to the text. The map starts at
    zero, so the combiner starts as the text alone, which a short training must not fall below.
    ``transformer`` is a layer of a transformer, normalised after each part (IRENE's released code).
    Both add one vector to the text and another to the neighbours, to tell them apart.
    """

    def __init__(self, kind: Kind, dim: int, heads: int = 4) -> None:
        """Build a combiner of a kind; ``heads`` must divide ``dim``."""
        super().__init__()
        self.kind, self.dim, self.heads = kind, dim, heads
        self.text_type = nn.Parameter(torch.zeros(dim))
        self.neighbour_type = nn.Parameter(torch.zeros(dim))
        self.mix: nn.Module | None = None
        self.output: nn.Linear | None = None
        if kind == "transformer":
            self.mix = nn.TransformerEncoderLayer(dim, heads, HIDDEN, DROPOUT, batch_first=True)
        elif kind == "attention":
            self.mix = nn.MultiheadAttention(dim, heads, batch_first=True)
            self.output = nn.Linear(dim, dim)
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(self, text_ND: Tensor, neighbours_NKD: Tensor, is_there_NK: Tensor) -> Tensor:
        """Return the ads' vectors (N, D); masked neighbours have no influence."""
        neighbours_NKD = torch.where(is_there_NK[..., None], neighbours_NKD, 0.0)
        tokens_NTD = torch.cat(
            [(text_ND + self.text_type)[:, None], neighbours_NKD + self.neighbour_type], dim=1
        )
        has_text_N1 = is_there_NK.new_ones((len(text_ND), 1))
        mask_NT = torch.cat([has_text_N1, is_there_NK], dim=1)
        mixed_NTD = self._mixed(tokens_NTD, ~mask_NT)
        weights_NT1 = mask_NT[..., None].to(mixed_NTD.dtype)
        mean_ND = (mixed_NTD * weights_NT1).sum(dim=1) / weights_NT1.sum(dim=1)
        return mean_ND if self.output is None else text_ND + self.output(mean_ND)

    def _mixed(self, tokens_NTD: Tensor, is_padding_NT: Tensor) -> Tensor:
        if isinstance(self.mix, nn.MultiheadAttention):
            mixed: Tensor = self.mix(
                tokens_NTD, tokens_NTD, tokens_NTD, is_padding_NT, need_weights=False
            )[0]
            return mixed
        if self.mix is None:
            return tokens_NTD
        mixed = self.mix(tokens_NTD, src_key_padding_mask=is_padding_NT)
        return mixed
