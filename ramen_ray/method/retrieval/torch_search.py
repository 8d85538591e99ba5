"""Exact search by torch, for machines where faiss is missing or does not know the GPU.

Memory holds the ads, and the scores of a block of queries and a block of ads.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

QUERIES_PER_BLOCK = 1 << 10
ADS_PER_BLOCK = 1 << 14
AD_BITS = 32


class TorchIndex:
    """All ads on one device; searched as faiss's ``IndexFlatIP`` is."""

    def __init__(self, ad_embeddings: NDArray[np.float32], device: torch.device) -> None:
        """Copy the embeddings (ads, D) float32 to ``device``."""
        self._ads_LD = torch.from_numpy(ad_embeddings).to(device)

    @torch.inference_mode()
    def search(
        self, query_embeddings: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find each query's k ads of the largest inner products.

        Of equal ones the ad of the highest number comes first, as in faiss; but if not all of them
        are among the k best, faiss may keep others of them.

        Args:
            query_embeddings: (queries, D) float32.
            k: ads per query.

        Returns:
            inner products (queries, k) float32 and ad row numbers (queries, k) int64, best first;
            with fewer than k ads, the rest is -inf and -1.
        """
        shape = (len(query_embeddings), k)
        scores, ads = np.full(shape, -np.inf, dtype=np.float32), np.full(shape, -1, dtype=np.int64)
        num_found = min(k, len(self._ads_LD))
        if not num_found:
            return scores, ads
        with _full_precision():
            for start in range(0, len(query_embeddings), QUERIES_PER_BLOCK):
                rows = slice(start, start + QUERIES_PER_BLOCK)
                queries_BD = torch.from_numpy(query_embeddings[rows]).to(self._ads_LD.device)
                best_Bk = self._best(queries_BD, num_found).cpu().numpy()
                scores[rows, :num_found] = _scores(best_Bk)
                ads[rows, :num_found] = best_Bk & ((1 << AD_BITS) - 1)
        return scores, ads

    def _best(self, queries_BD: Tensor, k: int) -> Tensor:
        """Return the k highest keys (B, k) int64 of each query, highest first."""
        best_Bk = torch.empty((len(queries_BD), 0), dtype=torch.int64, device=queries_BD.device)
        for first in range(0, len(self._ads_LD), ADS_PER_BLOCK):
            scores_BL = queries_BD @ self._ads_LD[first : first + ADS_PER_BLOCK].T
            candidates = torch.cat([best_Bk, _keys(scores_BL, first)], dim=1)
            best_Bk = candidates.topk(min(k, candidates.shape[1]), dim=1).values
        return best_Bk


def _keys(scores_BL: Tensor, first: int) -> Tensor:
    """Return (B, L) int64 that are ordered as the scores are, and equal scores by their ads.

    The upper half has the bits of the score, those after the sign inverted if it is negative: so
    they are ordered as integers. The lower half is the number of the ad, from ``first`` on.
    """
    bits_BL = scores_BL.view(torch.int32)
    upper_BL = (bits_BL ^ ((bits_BL >> 31) & 0x7FFFFFFF)).long() << AD_BITS
    ads_L = torch.arange(first, first + scores_BL.shape[1], device=scores_BL.device)
    return upper_BL + ads_L


def _scores(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the scores, float32, of keys of any shape."""
    upper = (keys >> AD_BITS).astype(np.int32)
    return (upper ^ ((upper >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 matrices as such within the ``with`` block; training may allow TF32."""
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(kept)
