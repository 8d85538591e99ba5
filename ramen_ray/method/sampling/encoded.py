"""An encoded batch: vectors of what was drawn, pools of candidates, and which are positives.

Shapes: b rows of this worker and B of the global batch, U distinct texts, L candidates of a pool,
D width of an embedding, d width of a classifier.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.devices import to_device
from ramen_ray.method.distributed import gather_dealt, gather_tensors, world
from ramen_ray.method.sampling.batches import Batch
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.method.sampling.step_inputs import Pool, StepInputs
from ramen_ray.method.sampling.training_data import ADS, QUERIES
from ramen_ray.method.similarity import similarities


@dataclass(frozen=True)
class EncodedBatch:
    """A batch and the embeddings of its texts.

    Attributes:
        embeddings_UD: (U, D) float32, the embeddings of the distinct texts.
        added: what the parts of the step have added for the losses, by name.
    """

    inputs: StepInputs
    embeddings_UD: Tensor
    added: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def batch(self) -> Batch:
        """The global batch."""
        return self.inputs.batch

    @property
    def local(self) -> Batch:
        """This worker's share of the batch."""
        return self.inputs.local

    @property
    def ad_pool(self) -> Pool:
        """The candidates of all queries of the batch."""
        return self.inputs.ad_pool

    def anchor_pool(self, anchor_set: str) -> Pool:
        """Return the anchors of a set that nodes of either side drew."""
        return self.inputs.anchor_pools[anchor_set]

    def vectors(self, table: str, ids: Int64s) -> Tensor:
        """Return the embeddings (n, D) of drawn ids (n,); rows of id -1 hold arbitrary values."""
        # The gradients of indexing take several times as long.
        return functional.embedding(self.positions(table, ids), self.embeddings_UD)

    def positions(self, table: str, ids: Int64s) -> Tensor:
        """Return the places (n,) of drawn ids (n,) among the U texts, on the device."""
        texts = self.inputs.texts
        positions = texts.find(table, ids.clip(min=texts.ids[table][0]))
        return to_device(positions, self.embeddings_UD.device)

    def places(self, pool: Pool, drawn: Int64s) -> Tensor:
        """Return the positions of ``drawn`` ids, of any shape, in the pool, on the device."""
        return to_device(pool.find(drawn), self.embeddings_UD.device)

    @cached_property
    @torch.enable_grad()  # whoever asks first, adaptive λ among them
    def own_similarity(self) -> Tensor:
        """(b, L) similarities of this worker's queries to the ads of the ``ad_pool``."""
        queries_bD = self.vectors(QUERIES, self.local.queries)
        return similarities(queries_bD, self.vectors(ADS, self.ad_pool.ids))

    @cached_property
    def clicked_in_pool(self) -> Tensor:
        """(B, L) bool, which ads of the ``ad_pool`` the batch's queries clicked: P_i ∩ L_B."""
        return gather_tensors(self.own_clicked_in_pool)

    @cached_property
    def own_clicked_in_pool(self) -> Tensor:
        """The rows of :attr:`clicked_in_pool` of this worker's queries, (b, L) bool."""
        return self.inputs.clicked.to(self.embeddings_UD.device, non_blocking=True)

    def own_linked_in_pool(self, regularizer: Regularizer) -> Tensor:
        """Return (n, L) bool, which anchors of the pool this worker's nodes are linked to."""
        return self.inputs.linked[regularizer].to(self.embeddings_UD.device, non_blocking=True)

    def mean_anchors(self, regularizer: Regularizer, nodes: Int64s) -> tuple[Tensor, Tensor]:
        """Return the mean (n, D) of the pool's anchors that each node (n,) is linked to, or 0.

        The second tensor (n, 1) says which nodes are linked to any. The pool must not be empty.
        """
        pool = self.anchor_pool(regularizer.anchor_set)
        known = [pool.links(edges, nodes) for edges in self.inputs.data.known_edges[regularizer]]
        links = known[0] if len(known) == 1 else np.unique(np.concatenate(known))
        starts = np.searchsorted(links, np.arange(len(nodes) + 1) * len(pool.ids))
        device = self.embeddings_UD.device
        anchors = self.positions(pool.table, pool.ids[links % len(pool.ids)])
        means_nD = functional.embedding_bag(
            anchors, self.embeddings_UD, to_device(starts[:-1], device), mode="mean"
        )
        return means_nD, to_device(np.diff(starts) > 0, device)[:, None]


def encode(model: nn.Module, inputs: StepInputs, use_bf16: bool = False) -> EncodedBatch:
    """Encode each distinct text of the global batch once, split over the workers.

    ``model`` maps a :class:`~ramen_ray.method.model.texts.TokenBatch` to embeddings. Its gradients
    are then those of the sum of the workers' losses.
    """
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bf16):
        embeddings = model(inputs.tokens)
    num_workers = world()[1]
    if num_workers > 1 and embeddings.requires_grad:
        # DDP averages the workers' gradients, which here are parts of one sum.
        embeddings.register_hook(lambda gradient: num_workers * gradient)
    return EncodedBatch(inputs, gather_dealt(embeddings, len(inputs.texts.rows)))
