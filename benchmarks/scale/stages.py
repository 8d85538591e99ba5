"""The stages, each through its public door, in the order in which a user runs them.

All take the folder of a size: ``source`` has the generated tables, and the stages add ``dataset``,
``prepared`` and ``walked``. They return the number of rows that they passed.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import sampled
from benchmarks.in_process import Run, begin
from benchmarks.scale.generated import EVENTS_PER_QUERY
from ramen_ray.config import EncoderConfig, RunConfig, overlay
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.sampling.training_data import Regularizer
from ramen_ray.method.training.step import train_steps
from ramen_ray.presets import MINILM, tiny

ANCHOR_SET = "links"
SIDES = [Regularizer(ANCHOR_SET, "query"), Regularizer(ANCHOR_SET, "ad")]
ENCODER = EncoderConfig(kind="bag", pretrained=MINILM, max_length=32)
BATCH_SIZE, WARMUP_STEPS, STEPS = 1024, 3, 20
GB_PER_SHARD = 9.0  # the short codes of 18M texts, those of 10M queries and ads


Row = dict[str, float]


def measure(stage: str, folder: Path) -> Row:
    """Run a stage in this process, with Ray started before where it needs it; returns its figures.

    These are seconds, processor seconds, rows, and peaks of memory: ``driver`` is this process,
    with what it maps of files, and ``driver_own`` without; ``processes`` are those of Ray without
    what they share, and the store is Ray's.
    """
    torch.set_num_threads(1)
    if stage not in ("edges", "sessions", "train"):
        _start_ray()
    run = STAGES[stage](folder)
    started = time.monotonic()
    with sampled() as found:
        rows = run()
        seconds = time.monotonic() - started
    return {
        "seconds": seconds,
        "processor_s": found["processor_s"],
        "rows": rows,
        "driver_peak_mb": found["driver"] / 1e6,
        "driver_own_mb": found["driver_own"] / 1e6,
        "processes_peak_mb": found["below"] / 1e6,
        "store_peak_mb": found["object_store"] / 1e6,
    }


Stage = Callable[[], int]
"""What is measured, after everything that is not, such as imports; returns the number of rows."""


def _start_ray() -> None:
    """Start Ray and, on each CPU, a process that has loaded what the stages need."""
    import ray.data

    from ramen_ray.orchestration.cluster.joining import start_ray
    from ramen_ray.orchestration.cluster.resources import num_cpus

    start_ray()
    tasks = num_cpus()
    ray.data.range(tasks, override_num_blocks=tasks).map_batches(_load).take_all()


def _load(batch: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    import ramen_ray.orchestration.prepare.pipeline  # noqa: F401

    return batch


def clicks(folder: Path) -> Stage:
    from ramen_ray.data.tables.clicks.import_tables import import_tables
    from ramen_ray.data.tables.clicks.settings import UserTables

    source = folder / "source"
    tables = UserTables(str(source / "clicks"), str(source / "query"), str(source / "ad"))

    def run() -> int:
        dataset = import_tables(tables, folder / "dataset")
        splits = [f"queries/{split}" for split in dataset.splits]
        clicked = (
            rows["ad_ids"] for split in splits for rows in dataset.batches(split, ["ad_ids"])
        )
        return num_rows(dataset, ["ads", *splits]) + sum(len(ads.flatten()) for ads in clicked)

    return run


def edges(folder: Path) -> Stage:
    from ramen_ray.data.tables.graphs.edges import EdgeColumns, EdgeList, add_edge_list

    source = folder / "source"
    given = EdgeList(
        query_edges=str(source / "query_edges"),
        ad_edges=str(source / "ad_edges"),
        anchors=str(source / "anchor"),
        columns=EdgeColumns(edges_query="query_id", edges_weight="weight"),
        skip_bad_rows=True,  # a few queries of equal text have become one
    )

    def run() -> int:
        counts = add_edge_list(folder / "dataset", ANCHOR_SET, given)
        return sum(counts[f"edges/{one.path}"] for one in SIDES)

    return run


def validate(folder: Path) -> Stage:
    from ramen_ray.data.checks.validation import validate

    return _on_all_rows(folder, validate)


def describe(folder: Path) -> Stage:
    from ramen_ray.reports.description import describe

    return _on_all_rows(folder, lambda dataset: describe(dataset, MINILM, max_length=32))


def prepare(folder: Path) -> Stage:
    from ramen_ray.orchestration.prepare.pipeline import prepare
    from ramen_ray.orchestration.run.inputs import encoder_tokenizer

    tokenizer = encoder_tokenizer(ENCODER)
    return _on_all_rows(folder, lambda dataset: prepare(dataset, folder / "prepared", tokenizer))


def _on_all_rows(folder: Path, work: Callable[[Dataset], Any]) -> Stage:
    dataset = Dataset(folder / "dataset")

    def run() -> int:
        work(dataset)
        return num_rows(dataset, dataset.tables)

    return run


def walk(folder: Path) -> Stage:
    """Walk from all nodes; the rows are hops."""
    from ramen_ray.config import WalkConfig
    from ramen_ray.method.graph.walk import WalkSettings
    from ramen_ray.orchestration.prepare.walks import walked_edges

    data = prepared_in(folder)
    settings = WalkSettings(**WalkConfig().model_dump(exclude={"enabled"}))

    def run() -> int:
        walked = walked_edges(data, SIDES, settings, 0, folder / "walked")
        starts = [Csr.open(walked / one.path).indptr for one in SIDES]
        return settings.num_hops * sum(int(np.count_nonzero(np.diff(one))) for one in starts)

    return run


def prune(folder: Path) -> Stage:
    """Prune the dataset's own edges with an untrained bag, as a run's task; the rows are edges."""
    import ray

    from ramen_ray.orchestration.background.from_checkpoints import GraphPruning
    from ramen_ray.orchestration.run.build import build_model

    data = prepared_in(folder)
    build_model(_config(folder, BATCH_SIZE)).save(folder / "model", ENCODER.max_length)
    pruning = GraphPruning(data.path, data.path / "edges", SIDES, 0.0, use_bf16=False)
    (folder / "pruned").mkdir()

    def run() -> int:
        ray.get(ray.remote(_call).options(num_cpus=0).remote(pruning, folder))
        return sum(len(data.edges(*one).indices) for one in SIDES)

    return run


def _call(pruning: Callable[[Path, Path], Any], folder: Path) -> None:
    pruning(folder / "model", folder / "pruned")


def sessions(folder: Path) -> Stage:
    """Make co-session graphs, which come into the dataset directory; the rows are events."""
    from ramen_ray.data.tables.graphs.session_events import SessionLog
    from ramen_ray.data.tables.graphs.sessions import SessionSettings, add_co_session

    dataset = Dataset(folder / "dataset")
    num_queries = num_rows(dataset, [f"queries/{split}" for split in dataset.splits])
    log = SessionLog(str(folder / "source" / "log"))

    def run() -> int:
        add_co_session(dataset.path, log, SessionSettings(), replace=True)
        return EVENTS_PER_QUERY * num_queries

    return run


def similar(folder: Path) -> Stage:
    """Link similar texts, by a bag, in the dataset directory; the rows are texts."""
    from ramen_ray.method.graph.similar import SimilarSettings
    from ramen_ray.orchestration.prepare.similar_set import add_similar
    from ramen_ray.orchestration.run.build import build_encoder

    dataset = Dataset(folder / "dataset")
    build_encoder(ENCODER).save(folder / "bag", ENCODER.max_length)
    settings = SimilarSettings(str(folder / "bag"), max_length=ENCODER.max_length)

    def run() -> int:
        counts = add_similar(dataset.path, "similar", settings, gb_per_shard=GB_PER_SHARD)
        print(counts)  # with the recall
        return num_rows(dataset, ["ads", "queries/train"])

    return run


def train(folder: Path) -> Stage:
    """Train a bag for some steps, with the graph of both sides; the rows are queries."""
    one = bag_run(folder, BATCH_SIZE)
    list(train_steps(one.state, one.sampler, one.objective, WARMUP_STEPS))

    def run() -> int:
        list(train_steps(one.state, one.sampler, one.objective, WARMUP_STEPS + STEPS))
        return STEPS * BATCH_SIZE

    return run


def bag_run(folder: Path, batch_size: int) -> Run:
    """Build the training of a bag, on the walked graph if there is one."""
    walked = next(iter((folder / "walked").glob("*")), None)
    return begin(_config(folder, batch_size), prepared_in(folder), edges=walked)


STAGES: dict[str, Callable[[Path], Stage]] = {
    stage.__name__: stage
    for stage in (
        *(clicks, edges, validate, describe, prepare),
        *(walk, train, prune, sessions, similar),
    )
}


def prepared_in(folder: Path) -> Prepared:
    (path,) = (path for path in (folder / "prepared").iterdir() if path.is_dir())
    return Prepared(path)


def _config(folder: Path, batch_size: int) -> RunConfig:
    weights = {ANCHOR_SET: 0.1}
    changes = {
        "dataset": str(folder / "dataset"),
        "encoder.max_length": ENCODER.max_length,
        "regularization.lambda_x": weights,
        "regularization.lambda_z": weights,
        "regularization.adaptive": False,
        "training.global_batch_size": batch_size,
    }
    return overlay(tiny(), changes)


def num_rows(dataset: Dataset, tables: Iterable[str]) -> int:
    return sum(dataset.num_rows(table) for table in tables)
