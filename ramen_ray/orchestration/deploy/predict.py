"""Answer a table of queries of any size with a retriever, partition by partition.

Actors answer partitions; if one cannot hold the index, others hold a shard of it each.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from ray.actor import ActorHandle
from ray.data import ActorPoolStrategy

from ramen_ray.answering.ads import ADS
from ramen_ray.answering.encoding import Embeddings
from ramen_ray.answering.ranking import Flags, TopK
from ramen_ray.answering.requests import MAX_ANSWERS
from ramen_ray.answering.retriever import INDEX, QUERIES_PER_ANSWER
from ramen_ray.config import ConfigError
from ramen_ray.data.store.made_folder import owned_folder, read_json, write_json
from ramen_ray.data.store.same_texts import is_utf8
from ramen_ray.errors import DatasetError
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.method.retrieval.shards import HeldShard, IndexShard, index_shards, search_of
from ramen_ray.orchestration.cluster.joining import ClusterError, start_ray
from ramen_ray.orchestration.cluster.resources import (
    MAX_ATTEMPTS,
    Needs,
    find_room,
    in_words,
    limited_attempts,
    most_cpus,
    num_cpus,
    user_errors,
)
from ramen_ray.orchestration.deploy.prediction_files import (
    Answers,
    Asked,
    Partition,
    as_parquet,
    identity_of,
    partitions,
    query_files,
)
from ramen_ray.orchestration.run.directory import RunDirectory, refuse_other
from ramen_ray.orchestration.sharded_search import needs_of, queries_at_once
from ramen_ray.tracking.registry import Registry, RegistryError, ask, open_retriever

CPUS_PER_ACTOR = 2
MADE_FILE = ".queries.parquet"
"""In the folder of the answers until all is answered: the rows of a table that is not parquet."""
CALL_FILE = ".call.json"
"""In the same folder: what decides the answers."""
BYTES_PER_PROCESS = 1 << 30
"""Memory of a process that answers, besides the files that it reads."""
RESTARTED = {"max_restarts": -1, "max_task_retries": MAX_ATTEMPTS}  # on other machines, too

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answered:
    """All rows, rows without an answer, and partitions."""

    rows: int
    errors: int
    partitions: int


@dataclass(frozen=True)
class Work:
    """What all processes know; plain values."""

    asked: Asked
    answers: Answers
    retriever: Path  # its folder, which all machines can reach


def predict(registry: Registry, model_uri: str, asked: Asked, output: Path) -> Answered:
    """Write each query's best ads beside it, in ``output``, which all machines can reach.

    A partition's file has the source's columns and those of ANSWERS, and appears when it is whole:
    the same call resumes an interrupted one. ``error`` says why a row has no answer.

    Raises:
        DatasetError: the source cannot be read.
        ConfigError: there are fewer than ``top_k`` ads, or the retriever cannot use a GPU.
        RunError: another call writes or wrote ``output``, perhaps with other queries.
        RegistryError, TrackingError: there is no such retriever, or column.
        ClusterError: the cluster has no room for it.
    """
    retriever = registry.look_up(model_uri)
    num_ads = retriever.metadata["num_ads"]
    if not 1 <= asked.top_k <= num_ads:
        raise ConfigError(f"top_k {asked.top_k}: the retriever has {num_ads} ads to choose from")
    if asked.use_gpu and not retriever.uses_gpu:
        raise ConfigError(
            f"use_gpu: {retriever.uri} answers on CPUs only, as all bags and compiled encoders do"
        )
    files = query_files(asked)
    directory = RunDirectory(output)
    directory.create()
    with directory.locked(), owned_folder(output) as aside:
        folder = registry.download(retriever.uri, aside / "retriever")
        identity = identity_of(files)
        decides = {"model": retriever.uri, "queries": identity, "top_k": asked.top_k}
        decides |= {"column": asked.column, "encoding": asked.encoding, **asked.params}
        _note_call(output, decides)
        made = output / MADE_FILE
        pieces = partitions(as_parquet(asked, files, made, aside))
        answers = Answers(output, aside, pieces, asked.params.get("columns", ()))
        work = Work(asked, answers, folder)
        counts = answers.counts()
        missing = [number for number, part in enumerate(counts) if part is None]
        logger.info(
            "%d of %d partitions to answer with %s", len(missing), len(pieces), retriever.uri
        )
        if missing:
            start_ray()
            has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
            num_gpus = int(asked.use_gpu or (retriever.uses_gpu and has_gpus))
            with user_errors():
                _answer(work, missing, num_gpus)
            counts = answers.counts()
        if identity_of(query_files(asked)) != identity:
            raise DatasetError(
                f"{asked.queries} has changed since this call began; run it again, with another "
                f"folder for the answers"
            )
        whole = [part for part in counts if part is not None]
        if len(whole) < len(pieces):
            raise ClusterError(f"parts in {output} were changed meanwhile; run this again")
        made.unlink(missing_ok=True)
    return Answered(sum(rows for rows, _ in whole), sum(errors for _, errors in whole), len(pieces))


def _note_call(output: Path, decides: Mapping[str, Any]) -> None:
    """Note what decides the answers in a folder; a RunError if it has those of another call."""
    note = output / CALL_FILE
    if [*output.glob("part-*")]:
        before = read_json(note) if note.exists() else {}
        said = f"{output} has the answers of another call"
        refuse_other(before, decides, said, "choose another folder")
        return
    (output / MADE_FILE).unlink(missing_ok=True)  # of a call that has no answer yet
    write_json(note, decides)


def _answer(work: Work, missing: list[int], num_gpus: int) -> None:
    """Let as many processes as there is room for answer, and others hold a large index's shards."""
    whole, *others = index_shards(work.retriever / INDEX, work.asked.gb_per_shard)
    shards = [whole, *others] if others else []
    files = [file for file in (work.retriever / ENCODER_FOLDER).rglob("*") if file.is_file()]
    memory = BYTES_PER_PROCESS + sum(file.stat().st_size for file in files)
    memory += _bytes_of_ads(work.retriever) + (0 if shards else whole.num_bytes)
    answering: Needs = {"memory": float(memory)} | ({"GPU": num_gpus} if num_gpus else {})

    def all_needs(cpus: float) -> list[Needs]:
        return [{**answering, "CPU": cpus}, *(needs_of(shard, cpus) for shard in shards)]

    share = min(CPUS_PER_ACTOR, most_cpus(), num_cpus() / (len(shards) + 1))
    what = "a process that answers" + (f" and {len(shards)} with shards" if shards else "")
    # Others may hold CPUs: if a share of them is not free now, a half or a quarter of it does.
    cpus = find_room(all_needs, [_whole(share / part) for part in (1, 2, 4)], what)
    num_threads = max(int(cpus), 1)
    needs, *needs_of_shards = all_needs(cpus)
    left = Counter(ray.cluster_resources())
    held = []
    for shard, needed in zip(shards, needs_of_shards, strict=True):
        left.subtract(needed)
        started = ray.remote(ShardActor).options(**_options(needed), **RESTARTED)
        held.append(started.remote(shard, num_threads, work.answers.aside))
    fit = max(min(int(left[name] // count) for name, count in needs.items() if count), 1)
    size = min(fit, len(missing))
    logger.info(
        "answering in %d processes, each with %s, %d shards", size, in_words([needs]), len(shards)
    )
    items = [{"partition": number} for number in missing]
    ray.data.from_items(items, override_num_blocks=len(items)).map(
        Answer,
        fn_constructor_args=(work, num_threads, held),
        compute=ActorPoolStrategy(size=size),
        **_options(needs),
    ).materialize()


def _whole(share: float) -> float:
    """Return whole CPUs, a thread for each, or a part of one in hundredths."""
    return math.floor(share) if share >= 1 else math.floor(100 * share) / 100


def _bytes_of_ads(retriever: Path) -> int:
    footer = pq.read_metadata(retriever / ADS)
    return sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))


def _options(needs: Needs) -> dict[str, float]:
    names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    return {option: needs.get(name, 0) for name, option in names.items()}


class ShardActor(HeldShard):
    """A shard for actors that answer."""

    def __init__(self, shard: IndexShard, num_threads: int, attempts: Path) -> None:
        faiss.omp_set_num_threads(num_threads)
        with limited_attempts(attempts, f"indexing {shard}"):
            super().__init__(shard)


class Answer:
    """Answers one partition after another by a retriever, whose index may be in other actors."""

    def __init__(self, work: Work, num_threads: int, shards: Sequence[ActorHandle] = ()) -> None:
        faiss.omp_set_num_threads(num_threads)
        self.work = work
        self.shards = shards
        self.retriever: Any = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write the answers of a partition."""
        answers = self.work.answers
        partition = answers.partitions[row["partition"]]
        with limited_attempts(answers.aside, partition.name):
            if self.retriever is None:
                shards = [partial(_search, shard) for shard in self.shards]
                options: dict[str, Any] = {"search": search_of(shards)} if shards else {}
                self.retriever = open_retriever(self.work.retriever, **options)
            answers.write(row["partition"], self._answered(partition))
        return row

    def _answered(self, partition: Partition) -> Iterator[pa.Table]:
        """Yield rows of a partition with their answers beside them."""
        asked = self.work.asked
        schema = self.work.answers.schema(partition)
        beside = schema.names[len(partition.schema) :]
        at_once = queries_at_once(asked.top_k)
        for batch in partition.batches():
            for start in range(0, len(batch), at_once):
                rows = batch.slice(start, at_once)
                answers = self._ask(_values(rows[asked.column]))
                columns = [answers[name].combine_chunks() for name in beside]
                yield pa.Table.from_arrays([*rows.columns, *columns], schema=schema)

    def _ask(self, texts: Sequence[Any]) -> pa.Table:
        """Answer queries; those of about one length together, as all are padded to the longest."""
        most = max(min(QUERIES_PER_ANSWER, MAX_ANSWERS // self.work.asked.top_k), 1)
        by_length = sorted(range(len(texts)), key=lambda row: len(str(texts[row])))
        answers = [
            self._ask_together([texts[row] for row in by_length[start : start + most]])
            for start in range(0, len(texts), most)
        ]
        return pa.concat_tables(answers).take(np.argsort(by_length))

    def _ask_together(self, texts: Sequence[Any]) -> pa.Table:
        """Answer queries by one request, or by halves if they are too much for one."""
        params = {"top_k": self.work.asked.top_k, **self.work.asked.params}
        try:
            return ask(self.retriever, texts, params)
        except RegistryError:
            if len(texts) == 1:
                raise
        middle = len(texts) // 2
        halves = texts[:middle], texts[middle:]
        return pa.concat_tables(map(self._ask_together, halves))


def _search(shard: ActorHandle, vectors: Embeddings, k: int, among: Flags | None) -> TopK:
    with user_errors():
        topk: TopK = ray.get(shard.search.remote(vectors, k, among))
        return topk


def _values(cells: pa.Array) -> list[Any]:
    """Return the cells (n,) as Python values; bytes in place of texts that are not UTF-8."""
    try:
        return cells.to_pylist()
    except UnicodeDecodeError:
        contents = cells.cast(pa.large_binary()).to_pylist()
        return [cell.decode() if cell is not None and is_utf8(cell) else cell for cell in contents]
