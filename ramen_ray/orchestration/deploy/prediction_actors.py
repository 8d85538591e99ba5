"""The actors that answer partitions of queries, and those that hold shards of the index."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import ray
from ray.actor import ActorHandle

from ramen_ray.answering import code_of
from ramen_ray.answering.encoding import Embeddings
from ramen_ray.answering.ranking import Flags, TopK
from ramen_ray.data.store.same_texts import is_utf8
from ramen_ray.method.retrieval.shards import HeldShard, IndexShard, search_of
from ramen_ray.orchestration.cluster.resources import limited_attempts, user_errors
from ramen_ray.orchestration.deploy.prediction_files import Answers, Asked, Partition
from ramen_ray.orchestration.sharded_search import queries_at_once
from ramen_ray.tracking.registry import check_options


@dataclass(frozen=True)
class Work:
    """What all processes know; plain values."""

    asked: Asked
    answers: Answers
    retriever: Path  # its folder, which all machines can reach
    none: str | None = None  # why no query has an answer


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
        self.code = code_of(work.retriever)
        self.retriever: Any = None

    def _load(self) -> Any:
        shards = [partial(_search, shard) for shard in self.shards]
        options = {"search": search_of(shards)} if shards else {}
        check_options(self.code.Retriever, options)
        return self.code.Retriever(self.work.retriever, **options)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write the answers of a partition."""
        answers = self.work.answers
        partition = answers.partitions[row["partition"]]
        with limited_attempts(answers.aside, partition.name):
            self.retriever = self.retriever or self._load()
            answers.write(row["partition"], self._answered(partition))
        return row

    def _answered(self, partition: Partition) -> Iterator[pa.Table]:
        """Yield rows of a partition with their answers beside them."""
        asked = self.work.asked
        schema = self.work.answers.schema(partition)
        beside = schema.names[len(partition.schema) :]
        given = {"columns": asked.columns} if asked.columns else {}
        at_once = queries_at_once(asked.top_k)
        for batch in partition.batches():
            for start in range(0, len(batch), at_once):
                rows = batch.slice(start, at_once)
                texts = _values(rows[asked.column])
                errors = [self.code.find_error(text) or self.work.none for text in texts]
                best = self._best([texts[row] for row, error in enumerate(errors) if not error])
                answers = self.retriever.ads.spell_out(errors, *best, **given)
                columns = [answers[name].combine_chunks() for name in beside]
                yield pa.Table.from_arrays([*rows.columns, *columns], schema=schema)

    def _best(self, texts: list[str]) -> TopK:
        asked = self.work.asked
        vectors = self.retriever.embed(texts)
        if asked.at_most:
            rows, scores = self.retriever.best(vectors, asked.top_k, None, asked.at_most)
        else:
            rows, scores = self.retriever.nearest(vectors, asked.top_k)
        if asked.min_score is not None:
            rows = np.where(scores < asked.min_score, -1, rows)
        return rows, scores


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
