"""The steps that answer a partition of queries: encode, search, write."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.same_texts import is_utf8
from ramen_ray.method.retrieval.retriever_folder import ADS
from ramen_ray.orchestration.cluster.tasks import limited_attempts
from ramen_ray.orchestration.serve.partitions import Answers, Partition, with_answers
from ramen_ray.orchestration.sharded_search import Block, SearchShard, Shard, queries_at_once
from ramen_ray.tracking.retriever_model import Retriever, find_error


@dataclass(frozen=True)
class Work:
    """What the processes of all steps know; plain values."""

    partitions: list[Partition]  # all partitions of the queries
    column: str  # the column with the queries' texts
    top_k: int
    answers: Answers
    retriever: Path  # its folder, which all machines can reach
    min_score: float | None = None  # lowest score of an ad


class Encode:
    """Encodes the queries of one partition after another."""

    def __init__(self, work: Work) -> None:
        self.work, self.encoder = work, Retriever()
        self.encoder.load_encoder(work.retriever, {})
        self.dim = self.encoder.encode(["a query"]).shape[1]

    def __call__(self, row: dict[str, Any]) -> Block:
        """Make a block of a partition's queries, less those that cannot be answered."""
        partition = self.work.partitions[row["partition"]]
        with limited_attempts(self.work.answers.aside, f"{partition.name}, encoding"):
            parts = [self._encode(rows[self.work.column]) for rows in partition.batches()]
        queries = np.concatenate([np.empty((0, self.dim), np.float32), *parts])
        return {**row, "name": partition.name, "queries": queries}

    def _encode(self, texts: pa.Array) -> NDArray[np.float32]:
        queries = [text for text in _values(texts) if find_error(text) is None]
        return self.encoder.encode(queries) if queries else np.empty((0, self.dim), np.float32)


class Write:
    """Writes the answers of one partition after another."""

    def __init__(self, work: Work) -> None:
        self.work = work
        ads = pq.read_table(work.retriever / ADS)
        self.ads = [
            ads[name].cast(pa.large_string()).combine_chunks() for name in ("ad_id", "text")
        ]

    def __call__(self, block: Block) -> dict[str, Any]:
        """Write what was found for a block."""
        work, number = self.work, int(block["partition"])
        partition = work.partitions[number]
        with limited_attempts(work.answers.aside, f"{partition.name}, writing"):
            answered = self._beside(partition.batches(), partition.schema, block)
            work.answers.write(number, partition.schema, answered)
        return {"partition": number}

    def _beside(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, block: Block
    ) -> Iterator[pa.Table]:
        at_once, done = queries_at_once(self.work.top_k), 0
        for batch in batches:
            for start in range(0, len(batch), at_once):
                rows = batch.slice(start, at_once)
                errors = [find_error(text) for text in _values(rows[self.work.column])]
                own = slice(done, done + errors.count(None))
                done = own.stop
                answers = self._spell_out(errors, block["ads"][own], block["scores"][own])
                columns = [*rows.columns, *answers]
                yield pa.Table.from_arrays(columns, schema=with_answers(schema))

    def _spell_out(
        self, errors: list[str | None], ads: Int64s, scores: NDArray[np.float32]
    ) -> list[pa.Array]:
        """Return the columns of ANSWERS, from the ads (n, k) of the n queries without an error."""
        is_found = ads >= 0  # there may be fewer, and an approximate index may find fewer
        if self.work.min_score is not None:
            is_found &= scores >= self.work.min_score
        lengths = np.zeros(len(errors), dtype=np.int32)
        lengths[[error is None for error in errors]] = is_found.sum(axis=1)
        ends, rows = pa.array(np.append(0, lengths.cumsum()), pa.int32()), pa.array(ads[is_found])
        ids, texts = (column.take(rows).cast(pa.string()) for column in self.ads)
        flat = [ids, texts, pa.array(scores[is_found], pa.float32())]
        lists = [pa.ListArray.from_arrays(ends, column) for column in flat]
        return [*lists, pa.array(errors, pa.string())]


def _values(cells: pa.Array) -> list[Any]:
    """Return the cells (n,) as Python values; bytes in place of texts that are not UTF-8."""
    try:
        return cells.to_pylist()
    except UnicodeDecodeError:
        contents = cells.cast(pa.large_binary()).to_pylist()
        return [one.decode() if one is not None and is_utf8(one) else one for one in contents]


class AllSteps:
    """Does all steps of one partition after another, with the whole index."""

    def __init__(self, work: Work, shard: Shard, num_threads: int) -> None:
        search = SearchShard(shard, work.top_k, num_threads, work.answers.aside)
        self.steps: list[Callable[[dict[str, Any]], Any]] = [Encode(work), search, Write(work)]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Answer a partition."""
        for step in self.steps:
            row = step(row)
        return row
