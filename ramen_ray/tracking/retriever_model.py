"""The code that MLflow runs when a retriever is loaded or served: texts in, ads out.

MLflow keeps this file with each model. It imports nothing from ramen_ray, so a model can be served
without it and later versions do not change it. It imports torch only if the encoder is a
transformer that was not compiled.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

DEFAULT_TOP_K = 10
MAX_CHARACTERS = 10_000
MAX_QUERIES = 10_000  # of one request, which is answered whole and in memory
MAX_ANSWERS = 10_000_000
TEXTS_PER_PASS = 64
FEW_QUERIES = 8  # for so few one thread is fastest: several would wait for each other

Embeddings = NDArray[np.float32]
TokenIds = list[list[int]]
TokenMatrix = NDArray[np.int64]
StatesOf = Callable[[TokenMatrix, TokenMatrix], Embeddings]
"""Maps padded token ids (texts, T) and their mask (texts, T) to states (texts, T, D)."""
INPUTS = ("input_ids", "attention_mask")


class Retriever(PythonModel):
    """Finds the ads whose embeddings are nearest to those of queries."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load encoder, index and ads from the folder that the run wrote."""
        folder = Path(context.artifacts["retriever"])
        self.index = faiss.read_index(str(folder / "index.faiss"))
        self.num_threads = faiss.omp_get_max_threads()
        ads = pq.read_table(folder / "ads.parquet")
        self.ad_ids, self.ad_texts = (
            ads[name].cast(pa.large_string()).combine_chunks() for name in ("ad_id", "text")
        )
        self.load_encoder(folder, context.model_config or {})

    def load_encoder(self, folder: Path, config: dict[str, Any]) -> None:
        """Load what :meth:`encode` needs from the folder that the run wrote."""
        self.settings = json.loads((folder / "retriever.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(folder / "encoder" / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.settings["max_length"])
        self.tokenizer.no_padding()
        settings = {**self.settings, **config}
        load = _load_bag if settings["pooling"] == "bag" else _load_transformer
        self.pool = load(folder / "encoder", settings)
        self.vectors_of = _load_heads(folder, settings)

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Answer every query (the first column) with its ``top_k`` best ads.

        Returns:
            One row per query with ``ad_ids``, ``ads`` (their texts) and ``scores``, lists of equal
            length with the best first, and ``error``: None, or why this query has no answer.

        Raises:
            MlflowException: the request asks for too much, which a server answers with status 400.
        """
        top_k = (params or {}).get("top_k")
        if top_k is None:
            top_k = DEFAULT_TOP_K
        if not 1 <= top_k <= len(self.ad_ids):
            raise MlflowException.invalid_parameter_value(
                f"top_k is {top_k}; this retriever has {len(self.ad_ids)} ads to choose from, so "
                f"it must be from 1 to {len(self.ad_ids)}"
            )
        _check_size(len(model_input), top_k)
        queries = model_input.iloc[:, 0].tolist()
        errors = [find_error(query) for query in queries]
        answered = [row for row, error in enumerate(errors) if error is None]
        answers: list[tuple[list[Any], ...]] = [([], [], []) for _ in queries]
        if answered:
            embeddings = self.encode([queries[row] for row in answered])
            for row, answer in zip(answered, self.search(embeddings, top_k), strict=True):
                answers[row] = answer
        found = pd.DataFrame(answers, columns=["ad_ids", "ads", "scores"])
        return found.assign(error=pd.Series(errors, dtype=object))

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Return unit-norm vectors for search (texts, D)."""
        encodings = self.tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=self.settings["add_special_tokens"]
        )
        token_ids = [encoding.ids or [self.settings["placeholder"]] for encoding in encodings]
        by_length = sorted(range(len(texts)), key=lambda row: len(token_ids[row]))
        parts = [
            self.pool([token_ids[row] for row in by_length[start : start + TEXTS_PER_PASS]])
            for start in range(0, len(texts), TEXTS_PER_PASS)
        ]
        sorted_vectors = self.vectors_of(np.concatenate(parts))
        vectors = np.empty(sorted_vectors.shape, dtype=np.float32)
        vectors[by_length] = sorted_vectors
        return vectors

    def search(self, embeddings: Embeddings, top_k: int) -> list[tuple[list[Any], ...]]:
        """Return the ids, texts and scores of each query's best ads."""
        faiss.omp_set_num_threads(1 if len(embeddings) <= FEW_QUERIES else self.num_threads)
        scores, rows = self.index.search(embeddings, top_k)
        found = rows >= 0  # an approximate index may find fewer
        ends = found.sum(axis=1).cumsum()[:-1]
        columns = [
            self.ad_ids.take(pa.array(rows[found])).to_numpy(zero_copy_only=False),
            self.ad_texts.take(pa.array(rows[found])).to_numpy(zero_copy_only=False),
            scores[found],
        ]
        split = [[part.tolist() for part in np.split(column, ends)] for column in columns]
        return list(zip(*split, strict=True))


def _check_size(num_queries: int, top_k: int) -> None:
    problem = None
    if num_queries > MAX_QUERIES:
        problem = f"the request has {num_queries} queries; send at most {MAX_QUERIES} at once"
    elif num_queries * top_k > MAX_ANSWERS:
        problem = (
            f"the request asks for {num_queries} times {top_k} ads; send at most "
            f"{MAX_ANSWERS // top_k} queries at once, or lower top_k"
        )
    if problem is not None:
        raise MlflowException.invalid_parameter_value(problem)


def find_error(query: object) -> str | None:
    """Return why a query cannot be answered; None if it can."""
    if query is None or (isinstance(query, float) and math.isnan(query)):  # pandas' null
        return "the query is missing"
    if not isinstance(query, str):
        return f"the query is {type(query).__name__}, not a text"
    if not query.strip():
        return "the query is empty"
    if len(query) > MAX_CHARACTERS:
        return f"the query has {len(query)} characters; at most {MAX_CHARACTERS} are allowed"
    return None


def _load_heads(folder: Path, settings: dict[str, Any]) -> Callable[[Embeddings], Embeddings]:
    """Load what turns pooled states (texts, width) into unit-norm vectors for search.

    The vectors are the encoder's, those compared with classifiers, or both concatenated.
    """
    part, weight = settings.get("part", "encoder"), settings.get("classifier_weight", 1.0)
    project = _load_head(next((folder / "encoder").glob("*_Dense"), None))
    ask = _load_head(folder / "classifier_head" if part != "encoder" else None)

    def vectors_of(pooled: Embeddings) -> Embeddings:
        if part == "encoder":
            return _unit(project(pooled))
        if part == "classifier":
            return _unit(ask(pooled))
        both = np.hstack([_unit(project(pooled)), weight**0.5 * _unit(ask(pooled))])
        return np.asarray(both / (1 + weight) ** 0.5, dtype=np.float32)

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


def _load_bag(folder: Path, _: dict[str, Any]) -> Callable[[TokenIds], Embeddings]:
    """Load an encoder whose embeddings are means of token embeddings."""
    weights = load_file(folder / "0_StaticEmbedding" / "model.safetensors")["embedding.weight"]

    def embed(token_ids: TokenIds) -> Embeddings:
        lengths = np.array([len(ids) for ids in token_ids])
        tokens = weights[np.fromiter(chain.from_iterable(token_ids), dtype=np.int64)]
        sums = np.add.reduceat(tokens, lengths.cumsum() - lengths, axis=0)
        return np.asarray(sums / lengths[:, None], dtype=np.float32)

    return embed


def _load_transformer(folder: Path, settings: dict[str, Any]) -> Callable[[TokenIds], Embeddings]:
    """Load an encoder that pools the token states of a transformer, compiled if it was."""
    load = _load_onnx if "onnx" in settings else _load_torch
    states_of = load(folder, settings)

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


def _load_torch(folder: Path, settings: dict[str, Any]) -> StatesOf:
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # hide the warning about the pooler, which is not used
    logging.disable_progress_bar()
    device = settings.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
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


def _load_onnx(folder: Path, settings: dict[str, Any]) -> StatesOf:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    num_threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    options.intra_op_num_threads = int(num_threads or 0)  # 0: all cores
    session = InferenceSession(
        folder / settings["onnx"], options, providers=["CPUExecutionProvider"]
    )

    def states_of(token_ids: TokenMatrix, mask: TokenMatrix) -> Embeddings:
        inputs = dict(zip(INPUTS, (token_ids, mask), strict=True))
        return np.asarray(session.run(None, inputs)[0])

    return states_of


set_model(Retriever())
