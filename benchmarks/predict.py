"""Queries per second of jobs/predict.py, against the same retriever called in a process.

The queries are debian's, repeated with a number after each, in a parquet file of ten row groups;
the retriever is one of debian's ads (flat, torch). In turns, `here` calls the loaded model in a
process, and `job` answers with Ray Data's actors, from parquet to parquet, including the start of
Ray and of the model; `once_started` counts from the first written partition to the last.
All on two threads. `ratio` is the job's queries per second over those of the process.

    python -m benchmarks.predict [--queries 50000] [--layers 6] [--rounds 2]
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import alternate, finish, in_fresh_process, medians, prepared
from benchmarks.retriever import DATASET, make_retriever
from ramen_ray.config import EncoderConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.serve.predict import QueryTable, predict
from ramen_ray.orchestration.serve.queries import QUERIES_PER_BATCH
from ramen_ray.presets import MINILM
from ramen_ray.tracking.registry import Registry, uri_of
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import open_run, tracking_uri

NUM_PARTITIONS = 10
TOP_K = 10


def main() -> None:
    """Measure both sides in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=50_000)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    encoder = EncoderConfig(pretrained=MINILM, num_layers=asked.layers)
    data = prepared(DATASET, encoder)
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        write_queries(folder / "queries.parquet", asked.queries)
        model_uri = in_fresh_process(log_model, folder, data.path, encoder)
        sides = {
            side.__name__: partial(in_fresh_process, side, folder, model_uri)
            for side in (here, job)
        }
        rounds = alternate(asked.rounds, sides)
    rates = {
        side: medians([{name: asked.queries / s for name, s in row.items()} for row in rows])
        for side, rows in rounds.items()
    }
    figures = {"queries": asked.queries, "layers": asked.layers, "queries_per_s": rates}
    finish(rates["job"]["all"] / rates["here"]["all"], figures)


def write_queries(file: Path, count: int) -> None:
    """Write ``count`` different queries in NUM_PARTITIONS row groups."""
    known = Dataset(DATASET).read("queries/train")["text"].to_pylist()
    texts = [f"{known[row % len(known)]} {row // len(known)}" for row in range(count)]
    pq.write_table(pa.table({"text": texts}), file, row_group_size=-(-count // NUM_PARTITIONS))


def log_model(folder: Path, data: Path, config: EncoderConfig) -> str:
    """Log the retriever in a store in ``folder``; returns its URI."""
    made, dataset = make_retriever(folder, data, config), Dataset(DATASET)
    notes = {"dataset_fingerprint": dataset.fingerprint, "num_ads": dataset.num_rows("ads")}
    run = open_run(tracking_uri(folder), "benchmark", "predict", folder)
    return uri_of(log_retriever(run, made, ["a query"], notes))


def here(folder: Path, model_uri: str) -> dict[str, float]:
    """Return the seconds of the loaded model alone."""
    model = Registry(tracking_uri(folder)).load(model_uri)
    texts = pq.read_table(folder / "queries.parquet")["text"].to_pylist()
    model.predict(texts[:100], params={"top_k": TOP_K})
    started = time.monotonic()
    for start in range(0, len(texts), QUERIES_PER_BATCH):
        model.predict(texts[start : start + QUERIES_PER_BATCH], params={"top_k": TOP_K})
    return {"all": time.monotonic() - started}


def job(folder: Path, model_uri: str) -> dict[str, float]:
    """Return the seconds of the whole job, and those of as many queries once it has started."""
    registry, table = Registry(tracking_uri(folder)), QueryTable(str(folder / "queries.parquet"))
    with tempfile.TemporaryDirectory(dir=folder) as answers:
        started = time.monotonic()
        predict(registry, model_uri, table, Path(answers), TOP_K)
        seconds = time.monotonic() - started
        ends = sorted(part.stat().st_mtime for part in Path(answers).glob("*.parquet"))
    return {"all": seconds, "once_started": (ends[-1] - ends[0]) * len(ends) / (len(ends) - 1)}


if __name__ == "__main__":
    main()
