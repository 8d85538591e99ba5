"""Turn queries into vectors for search, with the encoder and the head that a run wrote."""

import json
import math
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Encoding, Tokenizer

SETTINGS = "retriever.json"
ENCODER = "encoder"
HEAD = "classifier_head"
TEXTS_PER_PASS = 64
FEW_QUERIES = 8  # for so few one thread is fastest: several would wait for each other
# doubts
UNKNOWN = "unknown words"  # more than half of its tokens
LOW = "low score"
CUT = "cut"  # it is longer than what is read
INPUTS = ("input_ids", "attention_mask")

Embeddings = NDArray[np.float32]
TokenIds = list[list[int]]
TokenMatrix = NDArray[np.int64]
StatesOf = Callable[[TokenMatrix, TokenMatrix], Embeddings]
"""Maps padded token ids (texts, T) and their mask (texts, T) to states (texts, T, D)."""


class QueryEncoder:
    """Turns texts into vectors for search."""

    def __init__(self, folder: Path, device: str | None = None) -> None:
        """Load what the run wrote into ``folder``; by default onto a GPU if there is one."""
        self.settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(folder / ENCODER / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.settings["max_length"])
        self.tokenizer.no_padding()
        load = _load_bag if self.settings["pooling"] == "bag" else _load_transformer
        self.pool = load(folder / ENCODER, self.settings, device)
        self.vectors_of = _load_heads(folder, self.settings)

    def __call__(self, texts: Sequence[str]) -> Embeddings:
        """Return unit-norm vectors (texts, D)."""
        return self.vectors(self.tokenize(texts)) if len(texts) else self([""])[:0]

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """Return the texts' tokens."""
        prompt = self.settings.get("query_prompt", "")
        encodings: list[Encoding] = self.tokenizer.encode_batch_fast(
            [prompt + text for text in texts],
            add_special_tokens=self.settings["add_special_tokens"],
        )
        return encodings

    def vectors(self, encodings: Sequence[Encoding]) -> Embeddings:
        """Return unit-norm vectors (texts, D) of some texts' tokens."""
        token_ids = [encoding.ids or [self.settings["placeholder"]] for encoding in encodings]
        by_length = sorted(range(len(token_ids)), key=lambda row: len(token_ids[row]))
        parts = [
            self.pool([token_ids[row] for row in by_length[start : start + TEXTS_PER_PASS]])
            for start in range(0, len(token_ids), TEXTS_PER_PASS)
        ]
        sorted_vectors = self.vectors_of(np.concatenate(parts))
        vectors = np.empty(sorted_vectors.shape, dtype=np.float32)
        vectors[by_length] = sorted_vectors
        return vectors

    def doubt(self, encoding: Encoding, score: float) -> str | None:
        """Say why an answer may be a bad one, whose best ad has this score; None if nothing does.

        LOW is below the ``least_score`` of the settings, that most train queries reach.
        """
        num_tokens = len(encoding.ids) - sum(encoding.special_tokens_mask)
        if 2 * encoding.ids.count(self.settings.get("unknown", -1)) > num_tokens:
            return UNKNOWN
        if score < self.settings.get("least_score", -math.inf):
            return LOW
        return CUT if encoding.overflowing else None


def _load_heads(folder: Path, settings: dict[str, Any]) -> Callable[[Embeddings], Embeddings]:
    """Load what turns pooled states (texts, width) into unit-norm vectors for search."""
    part = settings.get("part", "encoder")
    weight = settings.get("classifier_weight", 1.0)
    project = _load_head(next((folder / ENCODER).glob("*_Dense"), None))
    ask = _load_head(folder / HEAD if part != "encoder" else None)

    def vectors_of(pooled: Embeddings) -> Embeddings:
        if part == "encoder":
            return _unit(project(pooled))
        if part == "classifier":
            return _unit(ask(pooled))
        vectors = np.hstack([_unit(project(pooled)), weight**0.5 * _unit(ask(pooled))])
        return np.asarray(vectors / (1 + weight) ** 0.5, dtype=np.float32)

    return vectors_of


def _load_head(folder: Path | None) -> Callable[[Embeddings], Embeddings]:
    """Load a linear layer, with tanh or without; without a folder it changes nothing."""
    if folder is None:
        return lambda pooled: pooled
    weights = load_file(folder / "model.safetensors")
    has_tanh = "Tanh" in (folder / "config.json").read_text(encoding="utf-8")

    def head(pooled: Embeddings) -> Embeddings:
        vectors = pooled @ weights["linear.weight"].T + weights["linear.bias"]
        return np.asarray(np.tanh(vectors) if has_tanh else vectors)

    return head


def _unit(vectors: Embeddings) -> Embeddings:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12))


def _load_bag(folder: Path, *_: object) -> Callable[[TokenIds], Embeddings]:
    """Load an encoder whose embeddings are means of token embeddings."""
    weights = load_file(folder / "0_StaticEmbedding" / "model.safetensors")["embedding.weight"]

    def embed(token_ids: TokenIds) -> Embeddings:
        lengths = np.array([len(ids) for ids in token_ids])
        tokens = weights[np.fromiter(chain.from_iterable(token_ids), dtype=np.int64)]
        sums = np.add.reduceat(tokens, lengths.cumsum() - lengths, axis=0)
        return np.asarray(sums / lengths[:, None], dtype=np.float32)

    return embed


def _load_transformer(
    folder: Path, settings: dict[str, Any], device: str | None
) -> Callable[[TokenIds], Embeddings]:
    """Load an encoder that pools the token states of a transformer, compiled if it was."""
    compiled = settings.get("onnx")
    states_of = _load_onnx(folder / compiled) if compiled else _load_torch(folder, device)

    def embed(token_ids: TokenIds) -> Embeddings:
        lengths = np.array([len(ids) for ids in token_ids])[:, None]
        mask = np.arange(lengths.max()) < lengths
        padded = np.zeros(mask.shape, dtype=np.int64)
        padded[mask] = np.fromiter(chain.from_iterable(token_ids), dtype=np.int64)
        states = states_of(padded, mask.astype(np.int64))
        if settings["pooling"] == "cls":
            return np.asarray(states[:, 0])
        return np.asarray((states * mask[:, :, None]).sum(axis=1) / lengths, dtype=np.float32)

    return embed


def _load_torch(folder: Path, device: str | None) -> StatesOf:
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # hide the warning about the pooler, which is not used
    logging.disable_progress_bar()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    backbone = AutoModel.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    backbone.pooler = None
    num_threads = torch.get_num_threads()

    @torch.inference_mode()
    def states_of(token_ids: TokenMatrix, mask: TokenMatrix) -> Embeddings:
        torch.set_num_threads(1 if len(token_ids) <= FEW_QUERIES else num_threads)
        inputs = (torch.from_numpy(array).to(device) for array in (token_ids, mask))
        states = backbone(**dict(zip(INPUTS, inputs, strict=True))).last_hidden_state
        return np.asarray(states.cpu().numpy())

    return states_of


def _load_onnx(file: Path) -> StatesOf:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    num_threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    options.intra_op_num_threads = int(num_threads or 0)  # 0: all cores
    session = InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def states_of(token_ids: TokenMatrix, mask: TokenMatrix) -> Embeddings:
        inputs = dict(zip(INPUTS, (token_ids, mask), strict=True))
        return np.asarray(session.run(None, inputs)[0])

    return states_of
