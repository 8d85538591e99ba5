"""The token embeddings of a dataset's tokens: what training works on in place of the vocabulary.

A dataset has a part of a vocabulary, but gradients and AdamW would go through the rows of all
tokens. So the table is cut while a model is trained, and whole in files.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.model.encoder import EmbeddingTable, PooledEncoder
from ramen_ray.method.model.texts import PADDING


class OccurringTokens(nn.Module):
    """Stands in for an encoder's table of token embeddings, with the rows of some tokens only.

    Attributes:
        tokens: (n,) int64, the tokens whose rows are here, ascending.
        table: looks up these rows (n + 1, width), and a last one of ones.
    """

    def __init__(self, whole: EmbeddingTable, tokens: Int64s) -> None:
        """Cut ``whole``, which is kept on the CPU, to ``tokens``."""
        super().__init__()
        needed = [PADDING] if whole.padding_idx is None else [PADDING, whole.padding_idx]
        self.tokens = np.union1d(tokens, needed)
        weight = whole.weight.detach()
        kept = weight[torch.from_numpy(self.tokens).to(weight.device)]
        # The last row is a probe of ones: weight decay shrinks it as it would have shrunk each row
        # that was cut out, so saving can replay the decay.
        self.table = _with_rows(whole, torch.cat([kept, torch.ones_like(weight[:1])]))
        if whole.padding_idx is not None:  # its row is not trained
            self.table.padding_idx = int(np.searchsorted(self.tokens, whole.padding_idx))
        row_of_token = np.full(len(weight), len(self.tokens) + 1)  # no row: looking it up fails
        row_of_token[self.tokens] = np.arange(len(self.tokens))
        # No buffer: several workers would send it to each other in every step.
        self._row_of_token = torch.from_numpy(row_of_token).to(weight.device)
        self._whole = (whole.cpu(),)  # in a tuple, as it is no part of what is trained

    @property
    def weight(self) -> nn.Parameter:
        """The rows (n + 1, width), a parameter."""
        return self.table.weight

    @property
    def embedding_dim(self) -> int:
        """Width of an embedding."""
        return self.table.embedding_dim

    def forward(self, token_ids: Tensor, *rest: Tensor) -> Tensor:
        """Look up ``token_ids`` as the whole table would; one that was cut out is an error."""
        embeddings: Tensor = self.table(self._row_of_token[token_ids], *rest)
        return embeddings

    def whole(self) -> EmbeddingTable:
        """Return the table of all tokens, on the CPU, as if all had been trained."""
        (whole,) = self._whole
        rows = self.weight.detach().cpu()
        weight = whole.weight.detach() * rows[-1]
        weight[torch.from_numpy(self.tokens)] = rows[:-1]
        return _with_rows(whole, weight)


def keep_tokens(encoder: PooledEncoder, tokens: Int64s) -> None:
    """Cut an encoder's token embeddings to ``tokens`` (n,); texts must have no others then."""
    encoder.set_token_table(OccurringTokens(encoder.token_table, tokens))


@contextmanager
def all_tokens(encoder: PooledEncoder) -> Iterator[None]:
    """Give a cut encoder its whole table within the ``with`` block, to be saved."""
    cut = encoder.token_table
    if not isinstance(cut, OccurringTokens):
        yield
        return
    encoder.set_token_table(cut.whole())
    try:
        yield
    finally:
        encoder.set_token_table(cut)


def _with_rows(table: EmbeddingTable, rows: Tensor) -> EmbeddingTable:
    """Return a table of the same kind with other rows."""
    return copy.deepcopy(table, {id(table.weight): nn.Parameter(rows)})
