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


class TorchIndex:
    """All ads on one device; searched as faiss's ``IndexFlatIP`` is."""

    def __init__(self, ad_embeddings: NDArray[np.float32], device: torch.device) -> None:
        """Copy the embeddings (ads, D) float32 to ``device``."""
        self._ads_LD = torch.from_numpy(ad_embeddings).to(device)
        self.ntotal = len(ad_embeddings)

    @torch.inference_mode()
    def search(
        self, query_embeddings: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the k largest inner products (queries, k) and their ads' rows; of equal ones, any.

        With fewer than k ads, the rest is -inf and -1.
        """
        shape = (len(query_embeddings), k)
        scores, ads = np.full(shape, -np.inf, dtype=np.float32), np.full(shape, -1, dtype=np.int64)
        num_found = min(k, self.ntotal)
        with _full_precision():
            for start in range(0, len(query_embeddings) if num_found else 0, QUERIES_PER_BLOCK):
                rows = slice(start, start + QUERIES_PER_BLOCK)
                queries_BD = torch.from_numpy(query_embeddings[rows]).to(self._ads_LD.device)
                best_Bk, ads_Bk = self._best(queries_BD, num_found)
                scores[rows, :num_found] = best_Bk.cpu().numpy()
                ads[rows, :num_found] = ads_Bk.cpu().numpy()
        return scores, ads

    def _best(self, queries_BD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k highest scores (B, k) of each query, highest first, and their rows."""
        best_Bk = queries_BD.new_empty((len(queries_BD), 0))
        ads_Bk = torch.empty_like(best_Bk, dtype=torch.int64)
        for first in range(0, self.ntotal, ADS_PER_BLOCK):
            scores_BL = queries_BD @ self._ads_LD[first : first + ADS_PER_BLOCK].T
            num_best = min(k, scores_BL.shape[1])
            of_block_Bk, places_Bk = scores_BL.topk(num_best, dim=1)
            candidates = torch.cat([best_Bk, of_block_Bk], dim=1)
            best_Bk, chosen_Bk = candidates.topk(min(k, candidates.shape[1]), dim=1)
            ads_Bk = torch.cat([ads_Bk, places_Bk + first], dim=1).gather(1, chosen_Bk)
        return best_Bk, ads_Bk


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 matrices as such within the ``with`` block; training may allow TF32."""
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(kept)
