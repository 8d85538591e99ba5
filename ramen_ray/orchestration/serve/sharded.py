"""Answer partitions of queries with a retriever that is too large for one process.

The steps of a dataset of Ray Data: actors encode the queries of a partition, actors that each hold
a shard of the index search it, and an actor writes the answers. So each process holds the encoder,
a shard, or the part of the ads' texts that it has just looked up.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from numpy.typing import NDArray
from ray.data import ActorPoolStrategy

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.method.retrieval.retriever_folder import ADS, INDEX
from ramen_ray.method.retrieval.shards import index_shards
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import ClusterError, has_room, num_cpus
from ramen_ray.orchestration.search import (
    MOMENT_S,
    PATIENCE_S,
    Block,
    Shard,
    ShardResources,
    queries_at_once,
    through_shards,
)
from ramen_ray.orchestration.serve.answers import Parts
from ramen_ray.orchestration.serve.queries import ANSWERS, Partition

CPUS_PER_ACTOR = 2
BYTES_PER_ENCODER = 1 << 30
"""Memory of a process that encodes, besides the encoder's files."""
BYTES_TO_WRITE = 1 << 30
MAPPED_ADS_FILE = "ads.arrow"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What the actors of all steps know; plain values.

    Attributes:
        partitions: all partitions of the queries.
        column: the column with the queries' texts.
        top_k: ads per query.
        parts: where the answers are written.
        retriever: folder of the retriever, which all machines can reach.
    """

    partitions: list[Partition]
    column: str
    top_k: int
    parts: Parts
    retriever: Path


def answer_with_shards(
    work: Work, missing: list[int], gb_per_shard: float, num_gpus: int = 0
) -> None:
    """Answer the partitions ``missing``, by number.

    Args:
        work: what is answered, and with what.
        missing: the partitions to answer.
        gb_per_shard: GB of the index that a process may hold.
        num_gpus: GPUs of a process that encodes.

    Raises:
        ClusterError: the cluster has no room for all shards at once, or processes have died.
    """
    shards = index_shards(work.retriever / INDEX, gb_per_shard)
    encoder = {"memory": float(_encoder_bytes(work.retriever))}
    encoder |= {"GPU": float(num_gpus)} if num_gpus else {}
    resources = _find_room(shards, encoder)
    logger.info("answering with %d shards, in a process each", len(shards))
    write_mapped_ads(work.retriever / ADS, work.parts.aside / MAPPED_ADS_FILE)
    items = [{"partition": number} for number in missing]
    encoded = ray.data.from_items(items, override_num_blocks=len(items)).map(
        _Encode,
        fn_constructor_args=(work,),
        compute=ActorPoolStrategy(min_size=1, max_size=len(items)),
        num_cpus=resources.num_cpus,
        num_gpus=num_gpus,
        memory=encoder["memory"],
    )
    found = through_shards(encoded, shards, work.top_k, resources, work.parts.aside)
    found.map(
        _Write,
        fn_constructor_args=(work,),
        compute=ActorPoolStrategy(size=1),
        num_cpus=0,
        memory=BYTES_TO_WRITE,
    ).materialize()


def _find_room(shards: Sequence[Shard], encoder: dict[str, float]) -> ShardResources:
    """Wait until all processes have room at once; returns what each gets.

    Others may hold CPUs, and those of one machine may not divide by a share: if a share is not free
    now, a half or a quarter of it does.

    Args:
        shards: the shards, a process each.
        encoder: what the process that encodes needs besides CPUs, by Ray's names.
    """
    share = min(CPUS_PER_ACTOR, num_cpus() / (len(shards) + 1))
    for part in (share, share / 2, share / 4):
        resources = _with_cpus(part)
        needed = [
            {"CPU": resources.num_cpus, **encoder},
            {"memory": float(BYTES_TO_WRITE)},
            *map(resources.needs, shards),
        ]
        if has_room(needed, MOMENT_S):
            return resources
    if has_room(needed, PATIENCE_S):
        return resources
    sums = sum(map(Counter, needed), Counter[str]())
    processors = " and ".join(f"{sums[name]:g} {name}s" for name in ("CPU", "GPU") if sums[name])
    raise ClusterError(
        f"the machines have not had {processors} and {sums['memory'] / 1e9:.1f} GB of memory free "
        f"in {PATIENCE_S} s, for {len(shards)} shards of the retriever at once; add machines, or "
        f"run this again"
    )


def _with_cpus(share: float) -> ShardResources:
    """Return resources with so many CPUs: whole ones, a thread for each, or a part of one."""
    if share >= 1:
        return ShardResources(int(share), int(share))
    return ShardResources(1, math.floor(100 * share) / 100)


def _encoder_bytes(retriever: Path) -> int:
    files = (file for file in (retriever / ENCODER_FOLDER).rglob("*") if file.is_file())
    return BYTES_PER_ENCODER + sum(file.stat().st_size for file in files)


class _Encode:
    """An actor that encodes the queries of one partition after another."""

    def __init__(self, work: Work) -> None:
        from ramen_ray.tracking.retriever_model import Retriever, find_error

        self.work, self.find_error = work, find_error
        self.encoder = Retriever()
        self.encoder.load_encoder(work.retriever, {})
        self.dim = self.encoder.encode(["a query"]).shape[1]

    def __call__(self, row: dict[str, Any]) -> Block:
        partition = self.work.partitions[row["partition"]]
        with limited_attempts(self.work.parts.aside, f"{partition.name}, encoding"):
            parts = [self._encode(rows[self.work.column]) for rows in partition.batches()]
        queries = np.concatenate([np.empty((0, self.dim), np.float32), *parts])
        return {**row, "name": partition.name, "queries": queries}

    def _encode(self, texts: pa.Array) -> NDArray[np.float32]:
        queries = [text for text in texts.to_pylist() if self.find_error(text) is None]
        return self.encoder.encode(queries) if queries else np.empty((0, self.dim), np.float32)


class _Write:
    """An actor that writes the answers of one partition after another."""

    def __init__(self, work: Work) -> None:
        from ramen_ray.tracking.retriever_model import find_error

        self.work, self.find_error = work, find_error
        self.ads = MappedAds(work.parts.aside / MAPPED_ADS_FILE)

    def __call__(self, block: Block) -> dict[str, Any]:
        work, number, done = self.work, block["partition"], 0

        def answer(texts: pa.Array) -> pa.Table:
            nonlocal done
            errors = [self.find_error(text) for text in texts.to_pylist()]
            own = slice(done, done + errors.count(None))
            done = own.stop
            return self._answers(errors, block["ads"][own], block["scores"][own])

        partition = work.partitions[number]
        with limited_attempts(work.parts.aside, f"{partition.name}, writing"):
            at_once = queries_at_once(work.top_k)
            partition.write_answers(work.column, work.parts, number, answer, at_once)
        return {"partition": number}

    def _answers(
        self, errors: list[str | None], ads: Int64s, scores: NDArray[np.float32]
    ) -> pa.Table:
        """Spell out the ads (n, k) of the n queries that have no error."""
        is_found = ads >= 0  # an approximate index may find fewer
        lengths = np.zeros(len(errors), dtype=np.int32)
        lengths[[error is None for error in errors]] = is_found.sum(axis=1)
        ends = pa.array(np.append(0, lengths.cumsum()), pa.int32())
        found = self.ads.take(ads[is_found])
        flat = [found["ad_id"], found["text"], pa.array(scores[is_found], pa.float32())]
        lists = [
            pa.ListArray.from_arrays(ends, column)
            for column in (_plain(flat[0]), _plain(flat[1]), flat[2])
        ]
        return pa.Table.from_arrays([*lists, pa.array(errors, pa.string())], schema=ANSWERS)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    return column.cast(pa.string()).combine_chunks()


class MappedAds:
    """The ids and texts of a retriever's ads, in a mapped file: memory has what is looked up."""

    def __init__(self, file: Path) -> None:
        """Map a file that :func:`write_mapped_ads` wrote."""
        self._reader = pa.ipc.open_file(pa.memory_map(str(file)))
        numbers = range(self._reader.num_record_batches)
        lengths = [self._reader.get_batch(number).num_rows for number in numbers]
        self._starts = np.cumsum([0, *lengths])

    def take(self, rows: Int64s) -> pa.Table:
        """Return ``ad_id`` and ``text`` of ads (n,) by row."""
        shown, places = np.unique(rows, return_inverse=True)
        bounds = np.searchsorted(shown, self._starts)
        parts = [
            self._reader.get_batch(number).take(pa.array(shown[begin:end] - self._starts[number]))
            for number, (begin, end) in enumerate(pairwise(bounds.tolist()))
            if begin < end
        ]
        return pa.Table.from_batches(parts, self._reader.schema).take(pa.array(places))


def write_mapped_ads(ads: Path, file: Path) -> None:
    """Copy the parquet file ``ads`` into a file for :class:`MappedAds`, batch by batch."""
    source = pq.ParquetFile(ads)
    with (
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, source.schema_arrow) as writer,
    ):
        for batch in source.iter_batches():
            writer.write_batch(batch)
