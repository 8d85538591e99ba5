"""Similarities of all rows to all candidates, with gradients that are quick where few count."""

from typing import Any

import torch
from torch import Tensor

SPARSE_SHARE = 1 / 16


def similarities(rows_bD: Tensor, candidates_LD: Tensor) -> Tensor:
    """Return the inner products (b, L) of rows (b, D) and candidates (L, D)."""
    products: Tensor = _Products.apply(rows_bD, candidates_LD)
    return products


class _Products(torch.autograd.Function):
    """The matrix product; its backward takes few of the products if most gradients are zero."""

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
        is_cpu, num_most = gradient_bL.device.type == "cpu", SPARSE_SHARE * gradient_bL.numel()
        if is_cpu and gradient_bL.count_nonzero() < num_most:
            gradient_bL = gradient_bL.to_sparse()
        return gradient_bL @ candidates_LD, gradient_bL.t() @ rows_bD
