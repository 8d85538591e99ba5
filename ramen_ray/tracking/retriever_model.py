"""The code that MLflow runs when a retriever is loaded or served: texts in, ads out.

MLflow keeps this file with each model. It imports nothing from ramen_ray, so that later versions do
not change a model, and torch only if the encoder is a transformer that was not compiled.
"""

import ctypes
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import faiss
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

DEFAULT_TOP_K = 10
FILTER = "filter_"  # prefix of the columns that answers can be filtered by
MOST_SCANNED = 50_000  # of so many ads that match, as of a flat index, none is missed
QUERY_COLUMNS = ("query", "text")
MAX_CHARACTERS = 10_000
# of one request, which is answered whole and in memory
MAX_QUERIES = 10_000
MAX_QUERY_CHARACTERS = 2_000_000
MAX_ANSWERS = 200_000
MAX_ANSWER_BYTES = 16_000_000
MAX_SECONDS = 30
BYTES_BESIDE_TEXTS = 30  # of a score, and what is around it and the texts in JSON
QUERIES_PER_ANSWER = 256
LARGE_CHARACTERS, LARGE_ANSWERS = 100_000, 10_000
M_ARENA_MAX = -8  # in glibc's malloc.h
FREEING_S, BETWEEN_S = 60, 1
"""For how long after a large request what it took is given back to the system, and how often."""
JSON_NAMES = {"dict": "an object", "list": "a list"}
SURROGATE = re.compile("[\ud800-\udfff]")
TEXTS_PER_PASS = 64
SPARE, DEEPER, MOST_SEARCHED = 8, 16, 100_000
"""Ads searched besides top_k; how many times more, while others may be as near; the most."""
EQUAL = np.float32(1e-6)  # as in evaluation: scores of one text differ by rounding
MOST_NAMED = 10
FEW_QUERIES = 8  # for so few one thread is fastest: several would wait for each other

Embeddings = NDArray[np.float32]
Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]
Columns = dict[str, tuple[dict[str, int], NDArray[np.int32]]]
"""By name of a column, the number of each of its values, and those of the ads (ads,), -1 for none.
"""
Answer = tuple[list[Any], ...]  # ids, texts and scores of a query's best ads
TokenIds = list[list[int]]
TokenMatrix = NDArray[np.int64]
StatesOf = Callable[[TokenMatrix, TokenMatrix], Embeddings]
"""Maps padded token ids (texts, T) and their mask (texts, T) to states (texts, T, D)."""
INPUTS = ("input_ids", "attention_mask")


class Retriever(PythonModel):
    """Finds the ads whose embeddings are nearest to those of queries."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load encoder, index and ads from the folder that the run wrote."""
        _call_glibc("mallopt", M_ARENA_MAX, 1)  # else glibc keeps memory for each thread
        folder = Path(context.artifacts["retriever"])
        self.index = faiss.read_index(str(folder / "index.faiss"))
        self.num_threads = faiss.omp_get_max_threads()
        self.freed_at = self.free_until = -math.inf
        ads = pq.read_table(folder / "ads.parquet")
        self.columns = columns_of(ads)
        self.ad_ids, self.ad_texts = (
            ads[name].cast(pa.large_string()).combine_chunks() for name in ("ad_id", "text")
        )
        self.ad_bytes = np.asarray(pc.binary_length(self.ad_ids)) + BYTES_BESIDE_TEXTS
        self.ad_bytes += np.asarray(pc.binary_length(self.ad_texts))
        # MLflow makes a table of each request; Arrow's strings cannot hold half a surrogate pair
        pd.set_option("mode.string_storage", "python")
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
        """Answer every query with its ``top_k`` best ads.

        Of a table, MLflow hands on the first column, which must be ``query`` or ``text``.
        ``params`` may also have ``filter``, by column the value that ads must have, or a list of
        which they must have one, and ``min_score``, the lowest of an ad. Returns a row per query
        with ``ad_ids``, ``ads`` (their texts) and ``scores``, lists with the best first, and
        ``error``: why there is no answer, or None. Raises an MlflowException, which a server
        answers with status 400, if the request asks for too much, or has other columns or values.
        """
        now = time.monotonic()
        if self.freed_at + BETWEEN_S <= now <= self.free_until:
            self.freed_at = now
            _call_glibc("malloc_trim", 0)  # which keeps what large requests took
        given = {key: value for key, value in (params or {}).items() if value is not None}
        top_k, least = given.get("top_k", DEFAULT_TOP_K), given.get("min_score", -math.inf)
        if math.isnan(least):
            _refuse("min_score is not a number; give one, or leave it out")
        among = matching(self.columns, wanted) if (wanted := given.get("filter")) else None
        if not 1 <= top_k <= len(self.ad_ids):
            _refuse(
                f"top_k is {top_k}; this retriever has {len(self.ad_ids)} ads to choose from, so "
                f"it must be from 1 to {len(self.ad_ids)}"
            )
        queries = _queries_of(model_input)
        sizes = (len(query) + 1 for query in queries if isinstance(query, str))
        if sum(sizes) > LARGE_CHARACTERS or len(queries) * top_k > LARGE_ANSWERS:
            self.free_until = time.monotonic() + FREEING_S
        errors = [find_error(query) for query in queries]
        answered = [row for row, error in enumerate(errors) if error is None]
        texts = [queries[row] for row in answered]
        _check_size(len(queries), sum(map(len, texts)), top_k)
        answers: list[Answer] = [([], [], []) for _ in queries]
        found = self._within_limits(texts, top_k, among, least)
        for row, answer in zip(answered, found, strict=True):
            answers[row] = answer
        table = pd.DataFrame(answers, columns=["ad_ids", "ads", "scores"])
        return table.assign(error=pd.Series(errors, dtype=object))

    def _within_limits(
        self, texts: list[str], top_k: int, among: Flags | None, least: float
    ) -> Iterator[Answer]:
        """Answer texts block by block, unless this takes too long or the answers grow too large."""
        started, num_bytes = time.monotonic(), 0
        for start in range(0, len(texts), QUERIES_PER_ANSWER):
            embeddings = self.encode(texts[start : start + QUERIES_PER_ANSWER])
            scores, rows = self._nearest(embeddings, top_k, among)
            rows[scores < least] = -1
            num_bytes += int(self.ad_bytes[rows[rows >= 0]].sum())
            if num_bytes > MAX_ANSWER_BYTES:
                _refuse(
                    f"the answers have more than {MAX_ANSWER_BYTES // 1_000_000} MB; send fewer "
                    f"queries at once, or lower top_k"
                )
            yield from self._spell_out(scores, rows)
            if time.monotonic() > started + MAX_SECONDS:
                _refuse(f"the request takes more than {MAX_SECONDS} s; send fewer queries at once")

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Return unit-norm vectors for search (texts, D)."""
        prompt = self.settings.get("query_prompt", "")
        encodings = self.tokenizer.encode_batch_fast(
            [prompt + text for text in texts],
            add_special_tokens=self.settings["add_special_tokens"],
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

    def _nearest(
        self, embeddings: Embeddings, top_k: int, among: Flags | None
    ) -> tuple[Embeddings, Int64s]:
        """Search; equally near ads are shuffled by their tie keys, as in evaluation."""
        faiss.omp_set_num_threads(1 if len(embeddings) <= FEW_QUERIES else self.num_threads)
        index, params = (self.index, None) if among is None else _only(self.index, among)
        has_graph = isinstance(index, faiss.IndexHNSW)  # deeper, it would find others
        depth, most = top_k + SPARE, min(index.ntotal, MOST_SEARCHED)
        scores, rows = index.search(embeddings, top_k if has_graph else depth, params=params)
        while not has_graph and depth < most:
            # ads that were not found may be as near to a query as the last it gets
            may_go_on = (scores[:, top_k - 1] - scores[:, -1] < EQUAL) & (rows[:, -1] >= 0)
            if not may_go_on.any():
                break
            depth *= DEEPER
            scores, rows = index.search(embeddings, depth, params=params)
        falls = scores[:, :-1] - scores[:, 1:] >= EQUAL
        rank = np.pad(np.cumsum(falls, axis=1), [(0, 0), (1, 0)])
        order = np.lexsort((_tie_keys(rows), rank), axis=1)[:, :top_k]
        return scores[:, :top_k], np.take_along_axis(rows, order, 1)

    def _spell_out(self, scores: Embeddings, rows: Int64s) -> list[Answer]:
        found = rows >= 0  # an approximate index may find fewer
        ends = found.sum(axis=1).cumsum()[:-1]
        shown, places = np.unique(rows[found], return_inverse=True)  # an ad's texts are made once
        columns = [
            self.ad_ids.take(pa.array(shown)).to_numpy(zero_copy_only=False)[places],
            self.ad_texts.take(pa.array(shown)).to_numpy(zero_copy_only=False)[places],
            scores[found],
        ]
        split = [[part.tolist() for part in np.split(column, ends)] for column in columns]
        return list(zip(*split, strict=True))


def _call_glibc(function: str, *arguments: int) -> None:
    """Call a function of the C library, where that is glibc."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), function):
        getattr(libc, function)(*arguments)


def columns_of(ads: pa.Table) -> Columns:
    """Return the columns by which a retriever's ads can be filtered."""
    columns = {}
    for name in ads.column_names:
        if name.startswith(FILTER):
            cells = ads[name].combine_chunks().dictionary_encode()
            number_of = {value: code for code, value in enumerate(cells.dictionary.to_pylist())}
            columns[name.removeprefix(FILTER)] = number_of, cells.indices.fill_null(-1).to_numpy()
    return columns


def matching(columns: Columns, wanted: Mapping[str, Any]) -> Flags:
    """Flag the ads (ads,) with all wanted values, or one of each list; or an MlflowException."""
    flags = []
    for name, given in wanted.items():
        if name not in columns:
            _refuse(f"there is no column {name!r} to filter by; {_named('columns', columns)}")
        number_of, codes = columns[name]
        values = given if isinstance(given, list | tuple) else [given]
        if not values:
            _refuse(f"the filter {name} is an empty list; give values, or leave it out")
        for value in values:
            if not isinstance(value, str):
                _refuse(f"the filter {name} is {value!r}; give a text, or a list of texts")
            if value not in number_of:
                _refuse(f"no ad has the {name} {value!r}; {_named('values', number_of)}")
        flags.append(np.isin(codes, [number_of[value] for value in values]))
    return np.asarray(np.logical_and.reduce(flags))


def _named(what: str, names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    return f"its {what} are {', '.join(shown[:MOST_NAMED])}{more}" if shown else "it has none"


def _only(index: Any, among: Flags) -> tuple[Any, Any]:
    """Return what to search for the ads that are flagged (ads,), and the parameters of a search."""
    number = max(int(among.sum()), 1)
    only = faiss.IDSelectorBitmap(np.packbits(among, bitorder="little"))
    # Few are all compared; of more, about as many are looked at as without a filter.
    is_few = number <= MOST_SCANNED
    if isinstance(index, faiss.IndexHNSW):
        if is_few:
            return faiss.downcast_index(index.storage), faiss.SearchParameters(sel=only)
        candidates = index.hnsw.efSearch * index.ntotal // number
        return index, faiss.SearchParametersHNSW(sel=only, efSearch=candidates)
    if isinstance(index, faiss.IndexIVF):
        cells = index.nlist if is_few else min(index.nprobe * index.ntotal // number, index.nlist)
        return index, faiss.SearchParametersIVF(sel=only, nprobe=cells)
    return index, faiss.SearchParameters(sel=only)


def _tie_keys(rows: Int64s) -> NDArray[np.uint64]:
    """Hash ads by their rows (splitmix64), as evaluation does."""
    z = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _queries_of(table: pd.DataFrame) -> list[Any]:
    """Return the queries of a request: of a list, in a column that has a number for a name."""
    name = table.columns[0]  # MLflow drops all others
    if isinstance(name, str) and name not in QUERY_COLUMNS:
        _refuse(
            f"the first column is {name!r}; put the queries first, in a column named "
            f"{' or '.join(QUERY_COLUMNS)}"
        )
    # of a list of objects MLflow makes arrays, of a text each
    return [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in table.iloc[:, 0]]


def _check_size(num_queries: int, num_characters: int, top_k: int) -> None:
    if num_queries > MAX_QUERIES:
        _refuse(f"the request has {num_queries} queries; send at most {MAX_QUERIES} at once")
    if num_characters > MAX_QUERY_CHARACTERS:
        _refuse(
            f"the queries have {num_characters} characters; send at most {MAX_QUERY_CHARACTERS} at "
            f"once"
        )
    if num_queries * top_k > MAX_ANSWERS:
        _refuse(
            f"the request asks for {num_queries} times {top_k} ads; send at most "
            f"{MAX_ANSWERS // top_k} queries at once, or lower top_k"
        )


def _refuse(problem: str) -> NoReturn:
    raise MlflowException.invalid_parameter_value(problem)


def find_error(query: object) -> str | None:
    """Return why a query cannot be answered; None if it can."""
    if query is None or (isinstance(query, float) and math.isnan(query)):  # pandas' null
        return "the query is missing"
    if not isinstance(query, str):
        name = type(query).__name__
        return f"the query is {JSON_NAMES.get(name, name)}, not a text"
    if not query.strip():
        return "the query is empty"
    if len(query) > MAX_CHARACTERS:
        return f"the query has {len(query)} characters; at most {MAX_CHARACTERS} are allowed"
    if SURROGATE.search(query):
        return "the query has half of a surrogate pair, which is no character"
    return None


def _load_heads(folder: Path, settings: dict[str, Any]) -> Callable[[Embeddings], Embeddings]:
    """Load what turns pooled states (texts, width) into unit-norm vectors for search."""
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
