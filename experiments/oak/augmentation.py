"""OAK's additions to an encoder: a bank of vectors of anchors, and what adds them to a query.

A query that is linked to anchors gets an attention over their vectors added to its embedding; ads
stay as they are. See experiments/README.md.

Shapes: b queries, m links of each, A anchors, D width of an embedding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.distributed import to_device
from ramen_ray.method.model.heads import Classifiers, unit

Pooling = Literal["attention", "mean"]
"""How the vectors of a query's anchors become one: weighted by an attention, or all alike."""

LEFT_OUT = -1e30  # not -inf: a query without links would have no weights, and no gradient
QUERIES_PER_PASS = 4096


class Combiner(nn.Module):
    """Adds the vectors of a query's anchors to its embedding, as OAK's released code does.

    With linear maps d, a, o that start at the identity and whose largest singular value is 1:
    unit(LayerNorm(x + o(Σ α v))), α the softmax over the query's links of d(x)·a(v) / √D.
    """

    def __init__(self, dim: int, pooling: Pooling = "attention", dropout: float = 0.0) -> None:
        """Build a combiner; ``mean`` has no maps d and a, ``dropout`` drops weights α."""
        super().__init__()
        self.dim = dim
        self.pooling = pooling
        self.dropout = dropout
        attends = pooling == "attention"
        self.of_query = _identity(dim) if attends else None
        self.of_anchor = _identity(dim) if attends else None
        self.output = _identity(dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, queries_bD: Tensor, anchors_bmD: Tensor, is_link_bm: Tensor) -> Tensor:
        """Return the enriched embeddings (b, D), unit norm; those without links as they were.

        Queries (b, D) and anchors (b, m, D) have unit norm; anchors are 0 where no link is.
        """
        weights_bm = self.weights(queries_bD, anchors_bmD, is_link_bm)
        weights_bm = functional.dropout(weights_bm, self.dropout, self.training)
        mixed_bD = (weights_bm[:, :, None] * anchors_bmD).sum(dim=1)
        enriched_bD = unit(self.norm(queries_bD + self.output(mixed_bD)))
        return torch.where(is_link_bm.any(dim=1, keepdim=True), enriched_bD, queries_bD)

    def weights(self, queries_bD: Tensor, anchors_bmD: Tensor, is_link_bm: Tensor) -> Tensor:
        """Return the weights α (b, m) of each query's anchors; 0 where there is none.

        Queries without links have weights too, of vectors that are zero.
        """
        scores_bm = anchors_bmD.new_zeros(is_link_bm.shape)
        if self.of_query is not None and self.of_anchor is not None:
            asking_bD1 = self.of_query(queries_bD)[:, :, None]
            scores_bm = (self.of_anchor(anchors_bmD) @ asking_bD1)[:, :, 0] / self.dim**0.5
        return torch.softmax(scores_bm.masked_fill(~is_link_bm, LEFT_OUT), dim=1)


def _identity(dim: int) -> nn.Module:
    linear = nn.Linear(dim, dim)
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)  # the power iteration starts at random vectors
        return spectral_norm(linear)


def _linked(links_bm: Int64s, anchors: Int64s, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit vectors (b, m, D) of links and which are any (b, m); zero where not."""
    places = np.where(links_bm >= 0, np.searchsorted(anchors, links_bm), -1)
    with_zero = functional.pad(unit(rows), (0, 0, 0, 1))  # the last row, which -1 stands for
    places_bm = to_device(places, rows.device)
    return with_zero[places_bm], places_bm >= 0


class Augmentation(nn.Module):
    """A combiner and the bank that it takes anchors from.

    Attributes:
        combiner: its parameters are trained with an optimiser of their own.
        bank: a free vector of each anchor, kept as classifiers are; no parameters of the module, as
            steps train a few rows only. ``is_trained`` marks the anchors of train queries.
    """

    def __init__(self, combiner: Combiner, bank: Classifiers) -> None:
        super().__init__()
        self.combiner = combiner
        self.bank = bank

    def forward(
        self, queries_bD: Tensor, links_bm: Int64s, anchors: Int64s, rows: Tensor
    ) -> Tensor:
        """Return the enriched embeddings (b, D) of queries (b, D), unit norm.

        ``links_bm`` (b, m) are their anchors, -1 for none; ``anchors`` (A,) all of these, ascending
        and perhaps with others, and ``rows`` (A, D) the bank's vectors of them.
        """
        return self.combiner(queries_bD, *_linked(links_bm, anchors, rows))

    @torch.no_grad()
    def evenness(
        self, queries_bD: Tensor, links_bm: Int64s, anchors: Int64s, rows: Tensor
    ) -> float | None:
        """Return how evenly queries weigh their anchors: 1 if all count alike, 0 if one alone does.

        It is the entropy of the weights α over the highest possible one, a mean over the queries
        with several links; None if there is none. Takes what :meth:`forward` takes.
        """
        vectors_bmD, is_link_bm = _linked(links_bm, anchors, rows)
        num_links_b = is_link_bm.sum(dim=1)
        with self._standing_still():
            weights_bm = self.combiner.weights(queries_bD, vectors_bmD, is_link_bm)
        several = num_links_b > 1
        if not several.any():
            return None
        entropies = torch.special.entr(weights_bm[several]).sum(dim=1)
        return float((entropies / num_links_b[several].log()).mean())

    @torch.inference_mode()
    def enrich(self, queries: NDArray[np.float32], links: NDArray[Any]) -> NDArray[np.float32]:
        """Return the enriched embeddings (n, D) of queries (n, D), whose links (n, m) may be -1."""
        device = self.combiner.norm.weight.device
        enriched = np.empty_like(queries)
        with self._standing_still():
            for start in range(0, len(queries), QUERIES_PER_PASS):
                part = slice(start, start + QUERIES_PER_PASS)
                part_links = links[part].astype(np.int64)
                anchors = np.unique(part_links[part_links >= 0])
                embedded = torch.from_numpy(queries[part]).to(device)
                rows = self.bank.take(anchors).to(device)
                enriched[part] = self(embedded, part_links, anchors, rows).cpu().numpy()
        return enriched

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        """Leave out dropout, and the steps of the power iteration that a use in training takes."""
        was_training = self.combiner.training
        self.combiner.eval()
        yield
        self.combiner.train(was_training)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the bank along with the parameters."""
        super()._apply(fn, recurse)
        self.bank = replace(self.bank, vectors=fn(self.bank.vectors))
        return self
