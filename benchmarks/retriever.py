"""A retriever's speed, and what each kind of index costs and finds.

The answers: a retriever of debian's ads (flat), logged and loaded by MLflow, answers test queries
one at a time (`p50_ms`, `p99_ms`) and all at once (`queries_per_s`), on two threads: with torch,
compiled to ONNX, and in 8-bit integers. `ratio` is the median answer with torch over that with
ONNX. `job` answers more queries, debian's with a number after each, by jobs/predict.py with torch,
from parquet to parquet: queries per second of all of it, and from the first written part to the
last (`once_started`).

The indexes: `--ads` embeddings lie between those of debian's ads and of ads near them, and the
queries are debian's. Per kind, `mb_per_million_ads`, `recall_at_100` against exact search, the
seconds to train and fill it, and the milliseconds of a search for 100 ads, one query at a time.

    python -m benchmarks.retriever [--ads 200000] [--layers 6] [--job-queries 8000]
"""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import faiss
import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from benchmarks.common import (
    NUM_THREADS,
    ROOT,
    finish,
    in_fresh_process,
    milliseconds_each,
    options,
    prepared,
    run_python,
    seconds_of,
)
from ramen_ray.config import EncoderConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.retrieval.index import IndexKind, new_index, sample_size
from ramen_ray.method.retrieval.retriever_folder import (
    RetrieverSettings,
    compile_retriever,
    write_retriever,
)
from ramen_ray.method.retrieval.search import search
from ramen_ray.orchestration.run.build import build_encoder
from ramen_ray.presets import MINILM
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import open_run

DATASET = str(ROOT / "datasets" / "debian")
QUERIES_AT_ONCE = 1024  # a request may take half a minute
NUM_QUERIES = 500
NEAREST = 10
NOISE = 0.02
RECALL_AT = 100
JOB_PARTS = 10
ADS_PER_BLOCK = 1 << 16

Embeddings = NDArray[np.float32]


def main() -> None:
    """Measure answers, then indexes."""
    asked = options(__doc__, ads=200_000, layers=6, job_queries=8000)
    encoder = EncoderConfig(pretrained=MINILM, num_layers=asked.layers)
    data = prepared(DATASET, encoder)
    answers = in_fresh_process(measure_answers, data.path, encoder, asked.job_queries)
    indexes = in_fresh_process(measure_indexes, data.path, encoder, asked.ads)
    figures = {**vars(asked), **answers, **indexes}
    finish(answers["torch"]["p50_ms"] / answers["onnx"]["p50_ms"], figures)


def measure_answers(
    path: Path, config: EncoderConfig, job_queries: int
) -> dict[str, dict[str, float]]:
    """Return latencies and throughput of the models as MLflow loads them, and of the job."""
    torch.set_num_threads(NUM_THREADS)
    queries = Dataset(DATASET).read("queries/test")["text"].to_pylist()
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        made = make_retriever(folder, path, config)
        for name in ("onnx", "int8"):
            shutil.copytree(made, folder / name)
            compile_retriever(folder / name, int8=name == "int8")
        uri = f"sqlite:///{folder}/mlflow.db"
        mlflow.set_tracking_uri(uri)
        run = open_run(uri, "benchmark", "retriever", folder)
        figures, dataset = {}, Dataset(DATASET)
        notes = {"dataset_fingerprint": dataset.fingerprint, "num_ads": dataset.num_rows("ads")}
        uris = {
            name: f"models:/{log_retriever(run, folder / name, queries[:2], notes)}"
            for name in ("torch", "onnx", "int8")
        }
        for name, of_model in uris.items():
            figures[name] = measure_model(mlflow.pyfunc.load_model(of_model), queries)
            print(name, figures[name], flush=True)
        figures["job"] = measure_job(folder, uris["torch"], queries, job_queries)
    return figures


def measure_job(folder: Path, uri: str, known: list[str], count: int) -> dict[str, float]:
    """Return the rate of the whole job, and of as many queries once it has started."""
    texts = [f"{known[row % len(known)]} {row // len(known)}" for row in range(count)]
    file, answers = folder / "queries.parquet", folder / "answers"
    pq.write_table(pa.table({"text": texts}), file, row_group_size=-(-count // JOB_PARTS))
    flags = {"model": uri, "queries": file, "answers": answers, "output": folder}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    seconds = seconds_of(lambda: run_python("jobs/predict.py", *words))
    ends = sorted(part.stat().st_mtime for part in answers.glob("*.parquet"))
    between = (ends[-1] - ends[0]) * len(ends) / (len(ends) - 1)
    return {"queries_per_s": count / seconds, "once_started": count / between}


def make_retriever(folder: Path, data: Path, config: EncoderConfig) -> Path:
    """Write a retriever of debian's ads, searched exactly, into ``folder``; returns where it is."""
    DualEncoder(build_encoder(config)).save(folder / "model", config.max_length)
    made, dataset = folder / "torch", Dataset(DATASET)
    model = load_model(folder / "model")
    write_retriever(
        made, model, dataset, Prepared(data), RetrieverSettings("flat", config.max_length, 1.0)
    )
    return made


def measure_model(model: Any, queries: list[str]) -> dict[str, float]:
    """Ask one query at a time, then many at once."""
    answered = milliseconds_each(lambda query: model.predict([query]), queries[:NUM_QUERIES])
    starts = range(0, len(queries), QUERIES_AT_ONCE)
    blocks = [queries[start : start + QUERIES_AT_ONCE] for start in starts]
    seconds = seconds_of(lambda: [model.predict(block) for block in blocks])
    p50, p99 = np.quantile(answered, (0.5, 0.99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99, "queries_per_s": len(queries) / seconds}


def measure_indexes(path: Path, config: EncoderConfig, num_ads: int) -> dict[str, dict[str, float]]:
    """Return what each kind of index costs and finds, by kind."""
    torch.set_num_threads(NUM_THREADS)
    data, model = Prepared(path), DualEncoder(build_encoder(config))
    queries = model.embed_queries(data.queries["test"], np.arange(NUM_QUERIES))
    ads = more_embeddings(model.embed_ads(data.ads, np.arange(len(data.ads))), num_ads)
    exact, _ = search(queries, ads, RECALL_AT)
    return {kind: measure_index(kind, ads, queries, exact) for kind in get_args(IndexKind)}


def more_embeddings(known: Embeddings, count: int) -> Embeddings:
    """Draw unit-norm embeddings (count, D) between known ones (n, D) and their nearest ones."""
    draw = np.random.default_rng(0)
    nearest, _ = search(known, known, NEAREST + 1)
    rows = np.empty((count, known.shape[1]), dtype=np.float32)
    for start in range(0, count, ADS_PER_BLOCK):
        some = rows[start : start + ADS_PER_BLOCK]
        first = draw.integers(len(known), size=len(some))
        second = nearest[first, draw.integers(1, NEAREST + 1, size=len(some))]
        part = draw.random((len(some), 1), dtype=np.float32)
        some[:] = (1 - part) * known[first] + part * known[second]
        some += NOISE * draw.standard_normal(some.shape, dtype=np.float32)
        some /= np.linalg.norm(some, axis=1, keepdims=True)
    return rows


def measure_index(
    kind: IndexKind, ads: Embeddings, queries: Embeddings, exact: NDArray[np.int64]
) -> dict[str, float]:
    """Fill an index of one kind and search it."""
    started = time.monotonic()
    index = new_index(kind, ads.shape[1], len(ads))
    if not index.is_trained:
        sample = np.random.default_rng(0).permutation(len(ads))[: sample_size(len(ads))]
        index.train(ads[sample])
    for start in range(0, len(ads), ADS_PER_BLOCK):
        index.add(ads[start : start + ADS_PER_BLOCK])
    seconds = time.monotonic() - started
    milliseconds, shares = [], []
    for query, best in zip(queries, exact, strict=True):
        before = time.perf_counter()
        _, found = index.search(query[None], RECALL_AT)
        milliseconds.append(1000 * (time.perf_counter() - before))
        shares.append(np.isin(best, found).mean())
    figures = {
        "mb_per_million_ads": faiss.serialize_index(index).nbytes / len(ads),
        "recall_at_100": float(np.mean(shares)),
        "search_p50_ms": float(np.median(milliseconds)),
        "build_s": seconds,
    }
    print(kind, figures, flush=True)
    return figures


if __name__ == "__main__":
    main()
