"""A model whose queries are enriched by the anchors that they are linked to, for evaluation."""

from typing import Any

from numpy.typing import NDArray

from experiments.oak.augmentation import Augmentation
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder, Embeddings


class AugmentedQueries(DualEncoder):
    """A model with the links of one split's queries; its ads are the model's."""

    def __init__(self, model: DualEncoder, augmentation: Augmentation, links: NDArray[Any]) -> None:
        """Enrich by ``links`` (queries, m): the anchors of each query, -1 for none."""
        super().__init__(model.encoder)
        self.augmentation, self.links = augmentation, links

    def embed_queries(
        self, texts: TokenTable, rows: NDArray[Any], use_bf16: bool = False
    ) -> Embeddings:
        """Return the enriched embeddings (n, D) of the split's queries ``rows`` (n,)."""
        embedded = super().embed_queries(texts, rows, use_bf16)
        return self.augmentation.enrich(embedded, self.links[rows])
