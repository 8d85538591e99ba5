"""Search of ads in shards: in this process if they are few, else in an actor for each shard.

Blocks of queries stream through the actors as steps of a Ray Data plan. Each actor adds what it
finds to the best ads so far, so all of them work at the same time, on different blocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import ray
import ray.data
from numpy.typing import NDArray
from ray.data import ActorPoolStrategy

from ramen_ray.data.arrays import map_array
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.method.retrieval.search import QUERIES_PER_PASS, Ids, TopK, merge_topk, search_index
from ramen_ray.orchestration.cluster.joining import quiet_ray_data, start_ray
from ramen_ray.orchestration.cluster.resources import (
    Needs,
    find_room,
    limited_attempts,
    most_cpus,
    num_cpus,
    user_errors,
)

BYTES_BESIDES = 1 << 29  # of an actor, besides its ads: Python, Ray, and blocks of queries
BYTES_HERE = 1 << 28  # of ads that the caller's own process searches
ANSWERS_AT_ONCE = 5_000_000  # ads found for queries; a retriever refuses more than twice as many
MOST_BLOCKS = 1000
MOST_QUERIES_PER_BLOCK = 65_536

Block = dict[str, Any]
"""A block of queries: a ``name`` for errors, and where their embeddings are, the rows ``start`` to
``stop`` of the ``.npy`` file ``file``. After a search also ``ads`` and ``scores``, a TopK."""


class Shard(Protocol):
    """Some of the ads."""

    @property
    def num_bytes(self) -> int:
        """Memory that they need."""

    def open(self) -> tuple[Any, Ids]:
        """Make their index; returns it, and the ids of its rows."""


def search_shards(
    shards: Sequence[Shard],
    file: Path,
    num_queries: int,
    k: int,
    num_threads: int | None = None,
) -> Iterator[tuple[int, TopK]]:
    """Find the k most similar of all shards' ads for queries whose embeddings are in a file.

    They are the first rows of an ``.npy`` file (rows, D) float32 that all machines can reach.
    Actors have ``num_threads``; None shares the CPUs evenly. Yields blocks in any order: their
    first query, and what was found. Raises a ClusterError without room, or if processes have died.
    """
    blocks = _query_blocks(file, num_queries)
    if len(shards) == 1 and shards[0].num_bytes <= BYTES_HERE:
        index, ids = shards[0].open()
        for block in blocks:
            yield block["start"], search_index(index, _queries_of(block), k, ids)
        return
    start_ray()
    num_threads = num_threads or min(max(num_cpus() // len(shards), 1), most_cpus())
    with owned_folder(file.parent) as attempts, user_errors():
        for block in _stream(blocks, shards, k, num_threads, attempts):
            yield block["start"], (block["ads"], block["scores"])


def put_together(blocks: Iterable[tuple[int, TopK]], num_queries: int, k: int) -> TopK:
    """Return what was found for all queries, from :func:`search_shards`."""
    ads = np.full((num_queries, k), -1)
    scores = np.full((num_queries, k), -np.inf, dtype=np.float32)
    for start, answers in blocks:
        ads[start : start + len(answers[0])], scores[start : start + len(answers[0])] = answers
    return ads, scores


def _query_blocks(file: Path, num_queries: int) -> list[Block]:
    """Cut the first rows of an ``.npy`` file into blocks: passes of a search, unless very many."""
    passes = -(-num_queries // QUERIES_PER_PASS)
    size = min(QUERIES_PER_PASS * max(-(-passes // MOST_BLOCKS), 1), MOST_QUERIES_PER_BLOCK)
    starts = range(0, num_queries, size)
    spans = [{"start": start, "stop": min(start + size, num_queries)} for start in starts]
    return [{"name": f"queries from {span['start']}", "file": str(file), **span} for span in spans]


def _stream(
    blocks: list[Block], shards: Sequence[Shard], k: int, num_threads: int, attempts: Path
) -> Iterator[Block]:
    quiet_ray_data()
    streaming = ray.data.from_items(blocks, override_num_blocks=len(blocks))
    largest = max(shards, key=lambda shard: shard.num_bytes)
    counts = [len(shards)]
    while counts[-1] > 1:
        counts.append((counts[-1] + 1) // 2)
    # If there is no room for all actors, queries stream through some shards, then through the next.
    # Free CPUs may be spread over several machines. Without any, actors work one after the other.
    options = [*((count, num_threads) for count in counts), (1, 0)]
    together, cpus = find_room(
        lambda option: [needs_of(largest, option[1])] * option[0],
        options,
        "a shard of the ads, which can be made smaller",
    )
    later = [*shards]
    while later:
        group = later[-together:]
        later = later[:-together]
        for shard in group:
            streaming = streaming.map(
                SearchShard,
                fn_constructor_args=(shard, k, num_threads, attempts),
                compute=ActorPoolStrategy(size=1),
                num_cpus=cpus,
                memory=needs_of(shard, cpus)["memory"],
            )
        if later:
            streaming = streaming.materialize()
    yield from streaming.iter_rows()


class SearchShard:
    """Holds a shard, and searches it for one block after another."""

    def __init__(self, shard: Shard, k: int, num_threads: int, attempts: Path) -> None:
        faiss.omp_set_num_threads(num_threads)
        self.k = k
        self.attempts = attempts
        self.shard = shard
        with limited_attempts(attempts, f"indexing {shard}"):
            self.index, self.ids = shard.open()

    def __call__(self, block: Block) -> Block:
        """Add what the shard has to the best ads of a block."""
        queries = _queries_of(block)
        shape = len(queries), self.k
        ads = np.empty(shape, dtype=np.int64)
        scores = np.empty(shape, dtype=np.float32)
        at_once = queries_at_once(self.k)
        with limited_attempts(self.attempts, f"{block['name']}, {self.shard}"):
            for start in range(0, len(queries), at_once):
                some = slice(start, start + at_once)
                best = [(block["ads"][some], block["scores"][some])] if "ads" in block else []
                shard_answers = search_index(self.index, queries[some], self.k, self.ids)
                ads[some], scores[some] = merge_topk([*best, shard_answers], self.k)
        return {**block, "ads": ads, "scores": scores}


def queries_at_once(k: int) -> int:
    """Return how many queries a process finds or spells out k ads for at once."""
    count = max(ANSWERS_AT_ONCE // k, 1)
    # whole passes of a search, so that it finds the same to the bit
    return count // QUERIES_PER_PASS * QUERIES_PER_PASS or count


def needs_of(shard: Shard, cpus: float) -> Needs:
    """Return what Ray reserves for the actor of ``shard``."""
    return {"memory": float(BYTES_BESIDES + shard.num_bytes)} | ({"CPU": cpus} if cpus else {})


def _queries_of(block: Block) -> NDArray[np.float32]:
    return np.asarray(map_array(block["file"])[block["start"] : block["stop"]])
