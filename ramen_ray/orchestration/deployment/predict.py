"""Answer a table of queries of any size with a retriever, partition by partition.

A partition is a row group of the source, or a part of a large one.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from ramen_ray.config import GB_PER_SHARD, ConfigError
from ramen_ray.data.sources import Piece, find_pieces
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import (
    ClusterError,
    has_room,
    most_cpus,
    start_ray,
    user_errors,
)
from ramen_ray.orchestration.deployment.partitions import (
    ANSWERS,
    PART,
    QUERIES_PER_BATCH,
    Partition,
)
from ramen_ray.orchestration.deployment.sharded import CPUS_PER_ACTOR, Work, answer_with_shards
from ramen_ray.orchestration.search import MOMENT_S, PATIENCE_S, queries_at_once
from ramen_ray.tracking.registry import LoggedRetriever, Registry

PLAN_FILE = "_predictions.json"  # readers of parquet folders ignore such names
ATTEMPTS, LOCK_FILE = ".attempts", ".lock"
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
    num_ads = retriever.metadata["num_ads"]
    if not 1 <= top_k <= num_ads:
        raise ConfigError(f"top_k {top_k}: the retriever has {num_ads} ads to choose from")
    if processes.use_gpu and not retriever.uses_gpu:
        raise ConfigError(
            f"use_gpu: {retriever.uri} answers on CPUs only, as all bags and compiled encoders do"
        )
    pieces = _parquet_pieces(table)
    partitions = _partitions(pieces)
    plan = {
        "model": retriever.uri,
        "model_content": registry.fingerprint(retriever.uri),
        "top_k": top_k,
        "column": table.column,
        "queries": _contents(pieces),
        "partitions": [[one.group.path, one.group.start, one.start] for one in partitions],
    }
    _claim(output, plan)
    with _locked(output):
        missing = [n for n in range(len(partitions)) if not (output / PART.format(n)).exists()]
        logger.info(
            "%d of %d partitions to answer with %s", len(missing), len(partitions), retriever.uri
        )
        if missing:
            start_ray()
            shutil.rmtree(output / ATTEMPTS, ignore_errors=True)  # left by a killed call
            needs = _needs(retriever, processes.use_gpu)
            asked = (partitions, table.column, top_k, output)
            with user_errors():
                if retriever.num_bytes <= processes.gb_per_shard * 1e9:
                    _answer(missing, needs, (registry.uri, retriever.uri, *asked))
                else:
                    aside = output / ATTEMPTS
                    aside.mkdir()
                    folder = registry.download(retriever.uri, aside)  # all machines can reach it
                    work = Work(*asked, folder, aside)
                    answer_with_shards(work, missing, processes.gb_per_shard, needs.get("GPU", 0))
            shutil.rmtree(output / ATTEMPTS)
        return _count(output, len(partitions), len(partitions) - len(missing))


def _parquet_pieces(table: QueryTable) -> list[Piece]:
    pieces = find_pieces(table.queries, [table.column])
    for piece in pieces:
        if piece.format != "parquet":
            raise DatasetError(f"{piece.path}: queries can be read from parquet only")
        if taken := sorted(set(ANSWERS.names) & set(piece.header)):
            raise DatasetError(
                f"{piece.path} has a column {', '.join(map(repr, taken))}, as the answers do"
                f"; rename it"
            )
    return pieces


def _partitions(pieces: list[Piece]) -> list[Partition]:
    """Cut row groups into partitions of at most QUERIES_PER_PARTITION rows; one if it is empty."""
    partitions = []
    files = {piece.path: piece.filesystem for piece in pieces}
    footers = {path: pq.read_metadata(path, filesystem=files[path]) for path in files}
    for piece in pieces:
        num_rows = footers[piece.path].row_group(piece.start).num_rows
        starts = range(0, max(num_rows, 1), QUERIES_PER_PARTITION)
        partitions += [
            Partition(piece, start, min(start + QUERIES_PER_PARTITION, num_rows))
            for start in starts
        ]
    return partitions


def _contents(pieces: list[Piece]) -> dict[str, str]:
    """Return the files, each with a hash of its content."""
    files = {piece.path: piece.filesystem for piece in pieces}
    with ThreadPoolExecutor() as threads:
        return dict(zip(files, threads.map(_content_hash, files.values(), files), strict=True))


def _content_hash(filesystem: FileSystem, path: str) -> str:
    with filesystem.open_input_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _claim(output: Path, plan: dict[str, Any]) -> None:
    """Note in ``output`` what will be written there; refuse if it already has something else."""
    file = output / PLAN_FILE
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            if any(output.glob("part-*.parquet")):  # parts without a plan are somebody else's
                raise ConfigError(f"{output} has parts of another table; choose another folder")
            with whole_file(file) as aside:
                aside.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        before = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot write the folder {output}: {error.strerror}") from error
    differ = [key for key in plan if before.get(key) != plan[key]]
    if differ:
        raise ConfigError(
            f"{output} has predictions of a different call ({', '.join(differ)} "
            f"differ); choose another folder"
        )


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Keep other calls from writing to ``output`` until the block ends."""
    try:
        held = FileLock(output / LOCK_FILE).acquire(blocking=False)
    except Timeout:
        raise ConfigError(
            f"another call is writing to {output}; wait until it has ended, or choose another "
            f"folder"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write the folder {output}: {error.strerror}") from error
    with held:
        yield


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

    def __init__(
        self,
        uri: str,
        model_uri: str,
        partitions: list[Partition],
        column: str,
        top_k: int,
        output: Path,
    ) -> None:
        self.model: Any = Registry(uri).load(model_uri)
        self.partitions, self.output = partitions, output
        self.column, self.top_k = column, top_k

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        (number,) = batch["partition"].tolist()
        partition = self.partitions[number]
        with limited_attempts(self.output / ATTEMPTS, partition.name):
            file = self.output / PART.format(number)
            at_once = queries_at_once(self.top_k)
            partition.write_answers(self.column, file, self._answer, at_once)
        return {"partition": np.array([number])}

    def _answer(self, texts: pa.Array) -> pa.Table:
        queries = pd.Series(texts.to_pylist(), dtype=object)
        found = self.model.predict(queries, params={"top_k": self.top_k})
        return pa.table({field.name: pa.array(found[field.name], field.type) for field in ANSWERS})


def _count(output: Path, num_partitions: int, done_before: int) -> Answered:
    rows = errors = 0
    for number in range(num_partitions):
        column = pq.read_table(output / PART.format(number), columns=["error"])["error"]
        rows += len(column)
        errors += len(column) - column.null_count
    return Answered(rows, errors, num_partitions, done_before)
