"""An encoded batch: vectors of what was drawn, pools of candidates, and which are positives.

Parts of the step add to it, by :class:`StepPart`. Shapes: b rows of this worker and B of the global
batch, U distinct texts, L candidates of a pool, D width of an embedding, d width of a classifier.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ramen_ray.method.distributed import gather_dealt, gather_own, world
from ramen_ray.method.sampling.batches import Batch, SamplingSources
from ramen_ray.method.sampling.step_inputs import Comparison, Pool, StepInputs

SPARSE_SHARE = 1 / 16
LEFT_OUT = -1e30
"""The similarity of what does not count; with -inf, a row of nothing else has no gradient."""


@dataclass(frozen=True)
class EncodedBatch:
    """A batch and the embeddings of its texts."""

    inputs: StepInputs
    embeddings_UD: Tensor  # (U, D) float32, the embeddings of the distinct texts
    # what the parts of the step have added for the losses, by name
    added: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def batch(self) -> Batch:
        """The global batch."""
        return self.inputs.batch

    @property
    def ad_pool(self) -> Pool:
        """All ads that the queries of the global batch drew."""
        return self.inputs.task.pool

    def copied(self, tensor: Tensor) -> Tensor:
        """Return one of the inputs' tensors on the device."""
        return tensor.to(self.embeddings_UD.device, non_blocking=True)

    def vectors(self, positions: Tensor) -> Tensor:
        """Return the embeddings (n, D) of the texts at some of the inputs' positions (n,)."""
        # The gradients of indexing take several times as long.
        return functional.embedding(self.copied(positions), self.embeddings_UD)

    @property
    def queries_bD(self) -> Tensor:
        """(b, D) embeddings of this worker's queries."""
        return self.vectors(self.inputs.task.rows)

    @property
    def all_queries_BD(self) -> Tensor:
        """(B, D) embeddings of the batch's queries."""
        return self.vectors(self.inputs.queries)

    @property
    def ads_LD(self) -> Tensor:
        """(L, D) embeddings of the ``ad_pool``."""
        return self.vectors(self.inputs.task.candidates)

    @property
    def own_places(self) -> Tensor:
        """(b, P) places in the ``ad_pool`` of the ads drawn for this worker's queries, or -1."""
        return self.copied(self.inputs.task.drawn)

    def similarities(self, comparison: Comparison) -> Tensor:
        """Return the similarities (n, L) of a comparison's rows to its candidates."""
        return similarities(self.vectors(comparison.rows), self.vectors(comparison.candidates))

    def is_positive(self, comparison: Comparison) -> Tensor:
        """Return (n, L) bool, which candidates are known positives of which rows."""
        # Made here, as few places of a mask are set, and all of it would have to be copied.
        shape = len(comparison.rows), len(comparison.candidates)
        device = self.embeddings_UD.device
        mask = torch.zeros(shape[0] * shape[1], dtype=torch.bool, device=device)
        return mask.index_fill_(0, self.copied(comparison.positives), True).view(shape)

    @cached_property
    @torch.enable_grad()  # whoever asks first, adaptive λ among them
    def own_similarity(self) -> Tensor:
        """(b, L) similarities of this worker's queries to the ads of the ``ad_pool``.

        LEFT_OUT of ads that are not encoded.
        """
        similarity_bL = self.similarities(self.inputs.task)
        if self.inputs.is_encoded is None:
            return similarity_bL
        return similarity_bL.masked_fill(~self.copied(self.inputs.is_encoded), LEFT_OUT)

    @cached_property
    def clicked_in_pool(self) -> Tensor:
        """(B, L) bool, which ads of the ``ad_pool`` the batch's queries clicked: P_i ∩ L_B."""
        return gather_own(self.own_clicked_in_pool, len(self.batch.queries))

    @cached_property
    def own_clicked_in_pool(self) -> Tensor:
        """The rows of :attr:`clicked_in_pool` of this worker's queries, (b, L) bool."""
        return self.is_positive(self.inputs.task)


def encode(model: nn.Module, inputs: StepInputs, use_bf16: bool = False) -> EncodedBatch:
    """Encode each distinct text of the global batch once, split over the workers.

    Gradients of ``model``, which embeds a TokenBatch, are of the sum of the workers' losses.
    """
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bf16):
        embeddings = model(inputs.tokens)
    num_workers = world()[1]
    if num_workers > 1 and embeddings.requires_grad:
        # DDP averages the workers' gradients, which here are parts of one sum.
        embeddings.register_hook(lambda gradient: num_workers * gradient)
    return EncodedBatch(inputs, gather_dealt(embeddings, len(inputs.texts.rows)))


def similarities(rows_bD: Tensor, candidates_LD: Tensor) -> Tensor:
    """Return the inner products (b, L) of rows (b, D) and candidates (L, D)."""
    products: Tensor = _Products.apply(rows_bD, candidates_LD)
    return products


class _Products(torch.autograd.Function):
    """The matrix product; its backward skips gradients of zero if most of them are."""

    @staticmethod
    def forward(ctx: Any, rows_bD: Tensor, candidates_LD: Tensor) -> Tensor:
        ctx.save_for_backward(rows_bD, candidates_LD)
        return rows_bD @ candidates_LD.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        rows_bD, candidates_LD = ctx.saved_tensors
        gradient_bL = gradients[0]
        # A triplet loss has a gradient at a row's positives and hardest negatives only. A GPU would
        # have to be waited for, and does the whole product as fast.
        is_cpu = gradient_bL.device.type == "cpu"
        num_most = SPARSE_SHARE * gradient_bL.numel()
        if is_cpu and gradient_bL.count_nonzero() < num_most:
            gradient_bL = gradient_bL.to_sparse()
        return gradient_bL @ candidates_LD, gradient_bL.t() @ rows_bD


class StepPart:
    """A part that does nothing; others override what they need."""

    name: str  # of its state in checkpoints
    is_shared: bool = False  # whether each worker saves a share, and not the first worker all
    moves_weights: bool = False  # whether :meth:`weigh` changes them, so that they are logged

    def prepare(self, inputs: StepInputs) -> StepInputs:
        """Return a step's inputs with what this part needs of them."""
        return inputs

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with what the losses need."""
        return encoded

    def weigh(self, weights: Tensor, encoded: EncodedBatch) -> Tensor:
        """Return the weights (terms,) of a step's losses; ``weights`` if they do not change."""
        return weights

    def after(self, encoded: EncodedBatch) -> None:
        """Act on a batch after it has updated the model."""

    def prepare_next_steps(self, step: int, sources: SamplingSources) -> SamplingSources:
        """Prepare for ``step`` and those after it; returns what their batches are drawn from.

        Every worker calls this before the first step, and before each checkpoint is written.
        """
        return sources

    def save(self, folder: Path) -> Any:
        """Return plain values and tensors for a checkpoint, and write what is large into it."""

    def restore(self, folder: Path, content: Any, sources: SamplingSources) -> SamplingSources:
        """Restore what :meth:`save` returned and wrote; returns what batches are drawn from."""
        return sources
