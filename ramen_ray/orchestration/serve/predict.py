"""Answer a table of queries of any size with a retriever, partition by partition.

A partition is a row group of the source, or a part of a large one.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from ramen_ray.config import GB_PER_SHARD, ConfigError
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import (
    ClusterError,
    has_room,
    most_cpus,
    start_ray,
    user_errors,
)
from ramen_ray.orchestration.search import MOMENT_S, PATIENCE_S, queries_at_once
from ramen_ray.orchestration.serve.answers import claim, locked
from ramen_ray.orchestration.serve.queries import (
    ANSWERS,
    QUERIES_PER_BATCH,
    Partition,
    row_groups,
)
from ramen_ray.orchestration.serve.sharded import CPUS_PER_ACTOR, Work, answer_with_shards
from ramen_ray.tracking.registry import LoggedRetriever, Registry, content_of, own_folder

QUERIES_PER_PARTITION = 12 * QUERIES_PER_BATCH
BYTES_PER_ACTOR = 1 << 30
"""Memory of a process besides the retriever's files: torch and a batch of answers."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueryTable:
    """A table of queries.

    Attributes:
        queries: Parquet: a file, a folder or a glob.
        column: The column with the queries' texts.
    """

    queries: str
    column: str = "text"


@dataclass(frozen=True)
class Answered:
    """The result of a call: all rows, rows without an answer, partitions done by earlier calls."""

    rows: int
    errors: int
    partitions: int
    done_before: int


@dataclass(frozen=True)
class Processes:
    """The processes that answer.

    Attributes:
        use_gpu: Wait for a machine with GPUs; else GPUs are used only if the cluster has some now.
        gb_per_shard: GB of a retriever that one process holds; a larger one is cut into shards.
    """

    use_gpu: bool = False
    gb_per_shard: float = GB_PER_SHARD


def predict(
    registry: Registry,
    model_uri: str,
    table: QueryTable,
    output: Path,
    top_k: int,
    processes: Processes = Processes(),
) -> Answered:
    """Write each query's best ads beside it; the same call resumes an interrupted one.

    A partition's file in ``output`` has the source's columns and those of ANSWERS, and only appears
    when it is whole. For a row that cannot be answered, ``error`` says why.

    Args:
        registry: the registry of the retriever's store.
        model_uri: the retriever, such as ``models:/NAME@champion``.
        table: the queries, on any file system that pyarrow knows.
        output: a folder that all machines can reach; made if it is missing.
        top_k: ads per query.
        processes: what may answer.

    Raises:
        DatasetError: the source cannot be read.
        ConfigError: ``top_k`` is more than there are ads, the retriever cannot use a GPU, another
            call writes ``output``, or it is from a different call or from queries that have changed
            since.
        RegistryError, TrackingError: there is no such retriever.
        ClusterError: the cluster has no room for it.
    """
    retriever = registry.look_up(model_uri)
    _check_fit(retriever, top_k, processes.use_gpu)
    files = _parquet_files(table)
    with locked(output) as aside:
        copied = registry.copy(retriever.uri, aside / "retriever")
        partitions = _partitions(files)
        plan = {
            "model": retriever.uri,
            "model_content": content_of(copied),
            "top_k": top_k,
            "column": table.column,
            "queries": [
                [one.group.path, one.group.number, one.start, one.group.content]
                for one in partitions
            ],
        }
        work = Work(partitions, table.column, top_k, claim(output, plan), copied)
        counts = work.parts.counts(range(len(partitions)))
        missing = [number for number, found in counts.items() if found is None]
        logger.info(
            "%d of %d partitions to answer with %s", len(missing), len(partitions), retriever.uri
        )
        if missing:
            _answer_missing(registry.uri, retriever, work, missing, processes)
            counts |= work.parts.counts(missing)
    whole = [found for found in counts.values() if found is not None]
    if len(whole) < len(partitions):
        raise ClusterError(f"parts in {output} were changed meanwhile; run this again")
    rows, errors = (sum(column) for column in zip(*whole, strict=True)) if whole else (0, 0)
    return Answered(rows, errors, len(partitions), len(partitions) - len(missing))


def _check_fit(retriever: LoggedRetriever, top_k: int, use_gpu: bool) -> None:
    num_ads = retriever.metadata["num_ads"]
    if not 1 <= top_k <= num_ads:
        raise ConfigError(f"top_k {top_k}: the retriever has {num_ads} ads to choose from")
    if use_gpu and not retriever.uses_gpu:
        raise ConfigError(
            f"use_gpu: {retriever.uri} answers on CPUs only, as all bags and compiled encoders do"
        )


def _parquet_files(table: QueryTable) -> dict[str, FileSystem]:
    files = find_files(table.queries, [table.column])
    for file in files:
        if file.format != "parquet":
            raise DatasetError(f"{file.path}: queries can be read from parquet only")
        if table.column in file.partitions:
            raise DatasetError(f"{file.path} has no column {table.column!r} in itself")
        if taken := sorted(set(ANSWERS.names) & set(file.header)):
            raise DatasetError(
                f"{file.path} has a column {', '.join(map(repr, taken))}, as the answers do"
                f"; rename it"
            )
    return {file.path: file.filesystem for file in files}


def _partitions(files: dict[str, FileSystem]) -> list[Partition]:
    """Cut row groups into partitions of at most QUERIES_PER_PARTITION rows; one if it is empty."""
    with ThreadPoolExecutor() as threads:
        groups = list(chain.from_iterable(threads.map(row_groups, files.values(), files)))
    return [
        Partition(group, start, min(start + QUERIES_PER_PARTITION, group.num_rows))
        for group in groups
        for start in range(0, max(group.num_rows, 1), QUERIES_PER_PARTITION)
    ]


def _answer_missing(
    uri: str, retriever: LoggedRetriever, work: Work, missing: list[int], processes: Processes
) -> None:
    start_ray()
    needs = _needs(retriever, processes.use_gpu)
    with user_errors():
        if retriever.num_bytes <= processes.gb_per_shard * 1e9:
            _answer(missing, needs, (uri, work))
        else:
            work = replace(work, retriever=own_folder(work.retriever))
            answer_with_shards(work, missing, processes.gb_per_shard, needs.get("GPU", 0))


def _needs(retriever: LoggedRetriever, use_gpu: bool) -> dict[str, int]:
    """Return the resources that an actor needs, by Ray's names; memory in bytes."""
    offered = ray.cluster_resources()
    needs = {
        "CPU": min(CPUS_PER_ACTOR, most_cpus()),
        "memory": BYTES_PER_ACTOR + retriever.num_bytes,
    }
    if use_gpu or (retriever.uses_gpu and offered.get("GPU", 0) >= 1):
        needs["GPU"] = 1
    return needs


def _answer(missing: list[int], needs: dict[str, int], answerer: tuple[Any, ...]) -> None:
    needed = _in_words(needs)
    _wait_for_room(needs, needed)
    offered = ray.cluster_resources()
    fit = max(min(int(offered.get(name, 0) // count) for name, count in needs.items()), 1)
    num_actors = min(fit, len(missing))
    logger.info("answering in %d processes, each with %s", num_actors, needed)
    items = [{"partition": number} for number in missing]
    ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        _Answerer,
        fn_constructor_args=answerer,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=num_actors),
        num_cpus=needs["CPU"],
        num_gpus=needs.get("GPU", 0),
        memory=needs["memory"],
    ).materialize()


def _in_words(needs: dict[str, int]) -> str:
    processors = ", ".join(f"{needs[name]} {name}" for name in ("CPU", "GPU") if name in needs)
    return f"{processors} and {needs['memory'] / 1e9:.1f} GB of memory"


def _wait_for_room(needs: dict[str, int], needed: str) -> None:
    """Wait until a machine has the resources for an actor; log it if there is a wait."""
    bundle: dict[str, float] = {**needs}
    if has_room([bundle], MOMENT_S):
        return
    logger.info("waiting for a machine with %s free", needed)
    if not has_room([bundle], PATIENCE_S):
        raise ClusterError(
            f"no machine has had {needed} free for {PATIENCE_S} s; run this again when one has"
        )


class _Answerer:
    """An actor that holds the retriever and answers one partition after another."""

    def __init__(self, uri: str, work: Work) -> None:
        from ramen_ray.tracking.retriever_model import find_error

        loaded: Any = Registry(uri).load(str(work.retriever))
        self.retriever, self.find_error = loaded.unwrap_python_model(), find_error
        self.work = work

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        (number,) = batch["partition"].tolist()
        work, partition = self.work, self.work.partitions[number]
        with limited_attempts(work.parts.aside, partition.name):
            at_once = queries_at_once(work.top_k)
            partition.write_answers(work.column, work.parts, number, self._answer, at_once)
        return {"partition": np.array([number])}

    def _answer(self, texts: pa.Array) -> pa.Table:
        """Answer as the retriever's ``predict`` does, which refuses more than a server may take."""
        queries = texts.to_pylist()
        errors = [self.find_error(query) for query in queries]
        asked = [query for query, error in zip(queries, errors, strict=True) if error is None]
        found = (
            self.retriever.search(self.retriever.encode(asked), self.work.top_k) if asked else []
        )
        answers = iter(found)
        rows = [next(answers) if error is None else ([], [], []) for error in errors]
        columns = [*zip(*rows, strict=True), errors]
        return pa.Table.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, ANSWERS, strict=True)],
            schema=ANSWERS,
        )
