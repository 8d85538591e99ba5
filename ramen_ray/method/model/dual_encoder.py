"""The model: it turns queries and ads into vectors, and is trained, saved and loaded whole."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.encoder import Encoder, load_encoder
from ramen_ray.method.model.texts import TextTokenizer, TokenBatch

ENCODER_FOLDER = "encoder"
TEXTS_PER_PASS = 2048

Embeddings = NDArray[np.float32]


class DualEncoder(nn.Module):
    """One encoder for queries, ads and anchors.

    All code that searches, prunes, mines or serves gets its vectors from ``embed_*``, so a model
    with more parts than an encoder can take its place. Training steps call the module itself on the
    texts of a batch.
    """

    def __init__(self, encoder: Encoder) -> None:
        """Wrap an encoder."""
        super().__init__()
        self.encoder = encoder

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.encoder.dim

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def forward(self, texts: TokenBatch) -> Tensor:
        """Return unit-norm embeddings (N, D) float32 in the order of ``texts``."""
        embeddings: Tensor = self.encoder(texts)
        return embeddings

    def embed_queries(
        self, texts: TokenTable, rows: NDArray[Any], use_bf16: bool = False
    ) -> Embeddings:
        """Return the queries' vectors for search.

        Args:
            texts: the queries' texts.
            rows: (n,) the rows to embed.
            use_bf16: encode under bfloat16 autocast.

        Returns:
            (n, D) float32, unit norm.
        """
        return self.embed_texts(texts, rows, use_bf16)

    def embed_ads(
        self, texts: TokenTable, rows: NDArray[Any], use_bf16: bool = False
    ) -> Embeddings:
        """Return the ads' vectors for search; as :meth:`embed_queries`."""
        return self.embed_texts(texts, rows, use_bf16)

    @torch.inference_mode()
    def embed_texts(
        self, texts: TokenTable, rows: NDArray[Any], use_bf16: bool = False
    ) -> Embeddings:
        """Return the encoder's embeddings of any texts, anchors too; as :meth:`embed_queries`."""
        if not len(rows):
            return np.empty((0, self.dim), dtype=np.float32)
        by_length = np.argsort(texts.lengths(rows), kind="stable")
        parts = []
        for start in range(0, len(rows), TEXTS_PER_PASS):
            chosen = rows[by_length[start : start + TEXTS_PER_PASS]]
            batch = TokenBatch(texts.gather(chosen), texts.lengths(chosen))
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=use_bf16):
                parts.append(self.encoder(batch).float().cpu().numpy())
        embeddings = np.empty((len(rows), parts[0].shape[1]), dtype=np.float32)
        embeddings[by_length] = np.concatenate(parts)
        return embeddings

    def save(self, folder: Path, max_length: int) -> None:
        """Write all trained parameters into ``folder``, for :func:`load_model`.

        Its subfolder ``encoder`` can be loaded by sentence-transformers as it is.
        """
        self.encoder.save(folder / ENCODER_FOLDER, max_length)


def load_model(folder: Path) -> DualEncoder:
    """Load what :meth:`DualEncoder.save` wrote, without unpickling code.

    Raises:
        EncoderError: the folder has no model.
    """
    return DualEncoder(load_encoder(folder / ENCODER_FOLDER))


def copy_model(folder: Path, target: Path) -> None:
    """Copy a saved model into the folder ``target``, but no other files of ``folder``."""
    shutil.copytree(folder / ENCODER_FOLDER, target / ENCODER_FOLDER)


def tokenize_texts(tokenize: TextTokenizer, texts: list[str]) -> TokenTable:
    """Tokenise ``texts`` into a table for ``embed_*``; equal texts stay separate."""
    token_ids, lengths = tokenize(texts)
    no_hashes = np.zeros(len(texts), dtype=np.uint64)
    return TokenTable(token_ids, np.append(0, lengths.cumsum()), no_hashes)
