"""The steps that answer a partition of queries: encode, search, write."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.answering import code_of
from ramen_ray.data.store.same_texts import is_utf8
from ramen_ray.orchestration.cluster.resources import limited_attempts
from ramen_ray.orchestration.deploy.prediction_files import Answers
from ramen_ray.orchestration.sharded_search import Block, SearchShard, Shard, queries_at_once


@dataclass(frozen=True)
class Work:
    """What the processes of all steps know; plain values."""

    answers: Answers
    column: str  # the column with the queries' texts
    top_k: int
    retriever: Path  # its folder, which all machines can reach
    min_score: float | None = None  # lowest score of an ad
    at_most: Mapping[str, int] = field(default_factory=dict)  # ads with one value, by column
    none: str | None = None  # why no query has an answer


class Encode:
    """Encodes the queries of one partition after another."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.code = code_of(work.retriever)
        self.encode = self.code.QueryEncoder(work.retriever)

    def __call__(self, row: dict[str, Any]) -> Block:
        """Make a block of a partition's queries, less those that cannot be answered."""
        partition = self.work.answers.partitions[row["partition"]]
        with limited_attempts(self.work.answers.aside, f"{partition.name}, encoding"):
            parts = [self._encode(rows[self.work.column]) for rows in partition.batches()]
        return {**row, "name": partition.name, "queries": np.concatenate([self.encode([]), *parts])}

    def _encode(self, texts: pa.Array) -> NDArray[np.float32]:
        return self.encode([text for text in _values(texts) if self.code.find_error(text) is None])


class Write:
    """Writes the answers of one partition after another."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.code = code_of(work.retriever)
        self.ads = self.code.Ads(work.retriever)

    def __call__(self, block: Block) -> dict[str, Any]:
        """Write what was found for a block."""
        work = self.work
        number = int(block["partition"])
        partition = work.answers.partitions[number]
        with limited_attempts(work.answers.aside, f"{partition.name}, writing"):
            schema = work.answers.schema(partition)
            answered = self._beside(partition.batches(), schema, block)
            work.answers.write(number, answered)
        return {"partition": number}

    def _beside(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, block: Block
    ) -> Iterator[pa.Table]:
        at_once = queries_at_once(self.work.top_k)
        done = 0
        for batch in batches:
            for start in range(0, len(batch), at_once):
                rows = batch.slice(start, at_once)
                errors = [self.code.find_error(text) for text in _values(rows[self.work.column])]
                answered = slice(done, done + errors.count(None))
                done = answered.stop
                ads, scores = block["ads"][answered], block["scores"][answered]
                if self.work.min_score is not None:
                    ads = np.where(scores < self.work.min_score, -1, ads)
                if self.work.none:
                    errors = [error or self.work.none for error in errors]
                    ads, scores = ads[:0], scores[:0]
                rows_of_ads = self.ads.rows_of(ads)
                given = {"columns": self.work.answers.columns} if self.work.answers.columns else {}
                answers = self.ads.spell_out(errors, rows_of_ads, scores, **given)
                names = schema.names[rows.num_columns :]
                columns = [*rows.columns, *(answers[name].combine_chunks() for name in names)]
                yield pa.Table.from_arrays(columns, schema=schema)


def _values(cells: pa.Array) -> list[Any]:
    """Return the cells (n,) as Python values; bytes in place of texts that are not UTF-8."""
    try:
        return cells.to_pylist()
    except UnicodeDecodeError:
        contents = cells.cast(pa.large_binary()).to_pylist()
        return [cell.decode() if cell is not None and is_utf8(cell) else cell for cell in contents]


class SearchWithLimits:
    """Finds each query's best ads, but at most so many with one value of a column."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.retriever = code_of(work.retriever).Retriever(work.retriever)

    def __call__(self, block: Block) -> Block:
        """Search for the queries of a block."""
        work = self.work
        numbers = np.append(self.retriever.ads.numbers, -1)
        rows, scores = self.retriever.best(block["queries"], work.top_k, None, work.at_most)
        return {**block, "ads": numbers[rows], "scores": scores}


class AllSteps:
    """Does all steps of one partition after another, with the whole index."""

    def __init__(self, work: Work, shard: Shard, num_threads: int) -> None:
        search: Callable[[Block], Block] = (
            SearchWithLimits(work)
            if work.at_most
            else SearchShard(shard, work.top_k, num_threads, work.answers.aside)
        )
        self.steps: list[Callable[[dict[str, Any]], Any]] = [Encode(work), search, Write(work)]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Answer a partition."""
        for step in self.steps:
            row = step(row)
        return row
