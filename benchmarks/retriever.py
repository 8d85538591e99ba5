"""A retriever's speed, what each kind of index costs and finds, and adding ads with a combiner.

The answers: a retriever of debian's ads (flat), answers test queries one by one
(`p50_ms`, `p99_ms`) and all at once (`queries_per_s`), on two threads: with torch, compiled to
ONNX, and in 8-bit integers. `ratio` is the median answer with torch over that with ONNX. `job` is
jobs/predict.py with torch, from parquet to parquet: queries per second of all of it, and from the
first written part to the last (`once_started`). The indexes: `--ads` embeddings lie between those
of debian's ads and of ads near them. New ads are made of the texts of two ads, and the combiner is
of the released kind; speed does not depend on what it has learned. `bag_new_ads` and `new_ads` have
milliseconds per ad, and the bag the seconds of `--stream` ads in one call.

    python -m benchmarks.retriever [--ads 200000] [--layers 6] [--job-queries 8000]
        [--new-ads 2000] [--stream 100000]
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
import torch
from numpy.typing import NDArray

from benchmarks.common import (
    NUM_THREADS,
    ROOT,
    finish,
    in_fresh_process,
    latencies,
    options,
    prepared,
    run_python,
    seconds_of,
    write_queries,
)
from ramen_ray.config import EncoderConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.new_ads.neighbours import Lookup, SeenAds
from ramen_ray.method.new_ads.representation import (
    CombinedAds,
    Combiner,
    combiner_of,
    use_combiner,
)
from ramen_ray.method.retrieval.index import IndexKind, filled_index
from ramen_ray.method.retrieval.retriever_folder import (
    RetrieverSettings,
    add_ads,
    compile_retriever,
    text_embedder,
    write_retriever,
)
from ramen_ray.method.retrieval.search import search, share_found
from ramen_ray.orchestration.run.build import build_encoder
from ramen_ray.presets import MINILM
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import open_run

DATASET = str(ROOT / "datasets" / "debian")
QUERIES_AT_ONCE = 1024  # a request may take half a minute
NUM_QUERIES = 500
NEAREST = 10
NOISE = 0.02
RECALL_AT = 100
JOB_PARTS = 10

Embeddings = NDArray[np.float32]


def main() -> None:
    asked = options(__doc__, ads=200_000, layers=6, job_queries=8000, new_ads=2000, stream=100_000)
    encoder = EncoderConfig(pretrained=MINILM, num_layers=asked.layers)
    bag = EncoderConfig(kind="bag", pretrained=MINILM)
    path, path_of_bag = prepared(DATASET, encoder).path, prepared(DATASET, bag).path
    answers = in_fresh_process(measure_answers, path, encoder, asked.job_queries)
    indexes = in_fresh_process(measure_indexes, path, encoder, asked.ads)
    new = {
        "new_ads": in_fresh_process(measure_new_ads, path, encoder, asked.new_ads, 0),
        "bag_new_ads": in_fresh_process(
            measure_new_ads, path_of_bag, bag, asked.new_ads, asked.stream
        ),
    }
    ratio = answers["torch"]["p50_ms"] / answers["onnx"]["p50_ms"]
    finish(ratio, {**vars(asked), **answers, **indexes, **new})


def measure_answers(
    path: Path, config: EncoderConfig, job_queries: int
) -> dict[str, dict[str, float]]:
    """Return latencies and throughput of the retrievers, and of the job."""
    torch.set_num_threads(NUM_THREADS)
    queries = Dataset(DATASET).read("queries/test")["text"].to_pylist()
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        make_retriever(folder, path, config)
        uris = {name: logged(folder, compiled(folder, name)) for name in ("torch", "onnx", "int8")}
        registry = Registry(f"sqlite:///{folder}/mlflow.db")
        figures = {name: measure_model(registry.load(uri), queries) for name, uri in uris.items()}
        return figures | {"job": measure_job(folder, uris["torch"], queries, job_queries)}


def compiled(folder: Path, name: str) -> Path:
    """Compile the retriever that was made in ``folder``, unless with torch; returns where it is."""
    if name != "torch":
        shutil.copytree(folder / "torch", folder / name)
        compile_retriever(folder / name, int8=name == "int8")
    return folder / name


def logged(folder: Path, made: Path) -> str:
    """Log a retriever in a store in ``folder``; returns the model's address."""
    uri, dataset = f"sqlite:///{folder}/mlflow.db", Dataset(DATASET)
    mlflow.set_tracking_uri(uri)
    notes = {"dataset_fingerprint": dataset.fingerprint, "num_ads": dataset.num_rows("ads")}
    run = open_run(uri, "benchmark", made.name, folder)
    return f"models:/{log_retriever(run, made, ['a query'], notes)}"


def measure_job(folder: Path, uri: str, known: list[str], count: int) -> dict[str, float]:
    """Return the rate of the whole job, and of as many queries once it has started."""
    file, answers = folder / "queries.parquet", folder / "answers"
    write_queries(file, known, count, -(-count // JOB_PARTS))
    flags = {"model": uri, "queries": file, "answers": answers, "output": folder}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    seconds = seconds_of(lambda: run_python("jobs/predict.py", *words))
    ends = sorted(part.stat().st_mtime for part in answers.glob("*.parquet"))
    between = (ends[-1] - ends[0]) * len(ends) / (len(ends) - 1)
    return {"queries_per_s": count / seconds, "once_started": count / between}


def make_retriever(
    folder: Path, data: Path, config: EncoderConfig, kind: IndexKind = "flat"
) -> Path:
    """Write a retriever of debian's ads into ``folder``; returns where it is."""
    DualEncoder(build_encoder(config)).save(folder / "model", config.max_length)
    made, dataset = folder / "torch", Dataset(DATASET)
    model = load_model(folder / "model")
    write_retriever(
        made, model, dataset, Prepared(data), RetrieverSettings(kind, config.max_length)
    )
    return made


def measure_model(model: Any, queries: list[str]) -> dict[str, float]:
    """Ask one query at a time, then many at once."""
    single = latencies(lambda query: model.answer([query]), queries[:NUM_QUERIES])
    starts = range(0, len(queries), QUERIES_AT_ONCE)
    blocks = [queries[start : start + QUERIES_AT_ONCE] for start in starts]
    seconds = seconds_of(lambda: [model.answer(block) for block in blocks])
    return {**single, "queries_per_s": len(queries) / seconds}


def measure_indexes(path: Path, config: EncoderConfig, num_ads: int) -> dict[str, dict[str, float]]:
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
    first = draw.integers(len(known), size=count)
    second = nearest[first, draw.integers(1, NEAREST + 1, size=count)]
    part = draw.random((count, 1), dtype=np.float32)
    rows = (1 - part) * known[first] + part * known[second]
    rows += NOISE * draw.standard_normal(rows.shape, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure_index(
    kind: IndexKind, ads: Embeddings, queries: Embeddings, exact: NDArray[np.int64]
) -> dict[str, float]:
    started = time.monotonic()
    index = filled_index(kind, ads)
    seconds = time.monotonic() - started
    single = latencies(lambda query: index.search(query[None], RECALL_AT), queries)
    _, found = index.search(queries, RECALL_AT)
    return {
        "mb_per_million_ads": faiss.serialize_index(index).nbytes / len(ads),
        "recall_at_100": share_found(found, exact),
        "search_p50_ms": single["p50_ms"],
        "build_s": seconds,
    }


def measure_new_ads(
    path: Path, encoder: EncoderConfig, num_ads: int, stream: int
) -> dict[str, float]:
    """Return milliseconds per ad, and of the stream its seconds and what is found of it."""
    torch.set_num_threads(NUM_THREADS)
    faiss.omp_set_num_threads(NUM_THREADS)
    texts = Dataset(DATASET).read("ads").sort_by("ad_id")["text"].to_pylist()
    with tempfile.TemporaryDirectory() as aside:
        made = make_retriever(Path(aside), path, encoder)
        known = text_embedder(made)(texts)
        seen = SeenAds(np.arange(len(known)), known, known)
        combiner = Combiner("transformer", known.shape[1]).eval()
        CombinedAds(combiner, seen, Lookup()).save(Path(aside) / "trained")
        plain = Path(shutil.copytree(made, Path(aside) / "plain"))
        use_combiner(made, Path(aside) / "trained", known, "flat")
        combined = combiner_of(made)
        assert combined is not None
        new, more = new_texts(texts, num_ads), new_texts(texts, stream)
        figures = {
            name: 1000 * min(seconds_of(run) for _ in range(3)) / num_ads
            for name, run in (
                ("ms_per_ad", lambda: add(made, new, combined)),
                ("without_combiner_ms", lambda: add(plain, new, None)),
            )
        }
        if stream:
            before = faiss.read_index(str(made / "index.faiss")).ntotal
            figures["stream_s"] = seconds_of(lambda: add(made, more, combined))
            index = faiss.read_index(str(made / "index.faiss"))
            _, found = index.search(combined.represent(text_embedder(made)(more[:1000])), 10)
            own = before + np.arange(len(found))[:, None]
            figures["found_first"] = float((found == own).any(axis=1).mean())
    return figures


def add(folder: Path, texts: list[str], combined: CombinedAds | None) -> int:
    """Add ads to a retriever; returns how many it has."""
    ads = pa.table({"ad_id": [f"new {number}" for number in range(len(texts))], "text": texts})
    return add_ads(folder, ads, combined.represent if combined else None)


def new_texts(texts: list[str], count: int) -> list[str]:
    """Join the texts of two ads, drawn at random."""
    pairs = np.random.default_rng(0).integers(len(texts), size=(count, 2))
    return [f"{texts[first]} {texts[second]}" for first, second in pairs]


if __name__ == "__main__":
    main()
