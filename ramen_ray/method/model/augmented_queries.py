"""A model whose queries are enriched by the anchors that they are linked to, for evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder, Embeddings

LINKS_FILE = "links/{}.npy"  # of a split, in a run's folder


@dataclass(frozen=True)
class AugmentedQueries:
    """A model with the links of one split's queries; its ads are the model's.

    Attributes:
        model: with an augmentation.
        links: (queries, m) the anchors of each query, -1 for none.
    """

    model: DualEncoder
    links: NDArray[np.int32]

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    def embed_queries(
        self, texts: TokenTable, rows: NDArray[Any], use_bf16: bool = False
    ) -> Embeddings:
        """Return the enriched embeddings (n, D) of the split's queries ``rows`` (n,)."""
        return self.enrich(self.model.embed_texts(texts, rows, use_bf16), rows)

    def enrich(self, embedded: Embeddings, rows: NDArray[Any]) -> Embeddings:
        """Enrich the embeddings (n, D) of the split's queries ``rows`` (n,)."""
        assert self.model.augmentation is not None, "the model has no bank of anchors"
        return self.model.augmentation.enrich(embedded, self.links[rows])

    def embed_ads(
        self, texts: TokenTable, rows: NDArray[Any], use_bf16: bool = False
    ) -> Embeddings:
        """Return the model's vectors (n, D) of ads."""
        return self.model.embed_ads(texts, rows, use_bf16)

    def own_share(self, ads: Int64s) -> Int64s:
        """Return those of ``ads`` that this worker embeds."""
        return self.model.own_share(ads)


def with_links(model: DualEncoder, folder: Path, split: str) -> DualEncoder | AugmentedQueries:
    """Return what answers a split's queries: the model, or, with OAK, the model with their links.

    The links are those that :func:`save_links` wrote into ``folder``.
    """
    if model.augmentation is None:
        return model
    return AugmentedQueries(model, np.load(folder / LINKS_FILE.format(split), mmap_mode="r"))


def save_links(folder: Path, split: str, links: NDArray[np.int32]) -> None:
    """Write the links (queries, m) of a split's queries, for :func:`with_links`."""
    file = folder / LINKS_FILE.format(split)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, links)
