"""Search of ads that are held in shards by actors, while blocks of queries stream through them.

Ray Data runs it. Each shard is a step of a dataset's plan with an actor of its own, which adds what
it finds to the best ads so far. So all actors work at the same time, on different blocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import ray
import ray.data
from numpy.typing import NDArray
from ray.data import ActorPoolStrategy, Dataset

from ramen_ray.method.retrieval.search import (
    QUERIES_PER_PASS,
    TopK,
    merge_topk,
    queries_per_block,
    search_index,
)
from ramen_ray.method.retrieval.shards import embedded_shards
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import (
    A_MOMENT_S,
    ClusterError,
    has_room,
    most_cpus,
    num_cpus,
    quiet_ray_data,
    start_ray,
    user_errors,
)

BYTES_BESIDES = 1 << 29
"""Memory of an actor besides its ads: Python, Ray, and blocks of queries."""
BYTES_HERE = 1 << 28
"""Ads that the caller's own process searches."""
ANSWERS_AT_ONCE = 5_000_000
"""Ads found, of all queries together, that a process works on; a retriever refuses more than twice
as many."""
MOMENT_S, PATIENCE_S = 2, 600

Block = dict[str, Any]
"""A block of queries: a ``name`` for errors, and their embeddings (n, D) in ``queries``, or where
these are, the rows ``start`` to ``stop`` of the ``.npy`` file ``file``. After a search also ``ads``
and ``scores``, a TopK."""


class Shard(Protocol):
    """Some of the ads."""

    @property
    def num_bytes(self) -> int:
        """Memory that they need."""

    def open(self) -> tuple[Any, int]:
        """Make their index; returns it, and what to add to its row numbers."""


@dataclass(frozen=True)
class ShardResources:
    """Resources of an actor that holds a shard.

    Attributes:
        num_threads: CPU threads.
        num_cpus: CPUs that Ray gives it; without any, actors work one after the other.
    """

    num_threads: int
    num_cpus: float = 0

    @classmethod
    def of_free(cls, num_threads: int) -> "ShardResources":
        """Take a CPU for each thread if a machine has so many free now, else none.

        Free CPUs may be spread over several machines, so Ray is asked.
        """
        is_free = ray.available_resources().get("CPU", 0) >= num_threads and has_room(
            [{"CPU": num_threads}], A_MOMENT_S
        )
        return cls(num_threads, num_threads if is_free else 0)

    def needs(self, shard: Shard) -> dict[str, float]:
        """Return what Ray reserves for the actor of ``shard``, by Ray's names."""
        memory = {"memory": float(BYTES_BESIDES + shard.num_bytes)}
        return memory | ({"CPU": self.num_cpus} if self.num_cpus else {})


def search_shards(
    shards: Sequence[Shard],
    queries: tuple[Path, int],
    k: int,
    resources: ShardResources,
    attempts: Path,
) -> TopK:
    """Find the k most similar of all shards' ads for queries whose embeddings are in a file.

    If the cluster has no room for all actors at once, the queries stream through some shards, then
    through the next.

    Args:
        shards: the ads, in order.
        queries: an ``.npy`` file (rows, D) float32 that all machines can reach, and how many of its
            first rows are queries.
        k: ads per query.
        resources: of each actor.
        attempts: a folder for marks of attempts, which all machines can reach.

    Returns:
        Ad numbers (queries, k) int64, -1 after the last, and similarities, best first, as
        :func:`ramen_ray.method.retrieval.search.search`.

    Raises:
        ClusterError: no machine has had room for a shard, or processes have died at it.
    """
    file, num_queries = queries
    ads = np.full((num_queries, k), -1)
    scores = np.full((num_queries, k), -np.inf, dtype=np.float32)
    for block in stream_blocks(shards, query_blocks(file, num_queries), k, resources, attempts):
        ads[block["start"] : block["stop"]] = block["ads"]
        scores[block["start"] : block["stop"]] = block["scores"]
    return ads, scores


def search_rows(
    queries: tuple[Path, int],
    ads: Path,
    k: int,
    gb_per_shard: float,
    is_exact: bool = True,
    effort: int = 1,
) -> Iterator[tuple[int, TopK]]:
    """Find the k most similar ads for queries, in blocks; in this process if they are few.

    Args:
        queries: an ``.npy`` file (rows, D) float32, and how many of its first rows are queries.
        ads: an ``.npy`` file (ads, D) float32. All machines can reach both, and its folder.
        k: ads per query.
        gb_per_shard: the size of a shard.
        is_exact: as of :func:`~ramen_ray.method.retrieval.shards.embedded_shards`.
        effort: likewise.

    Yields:
        the first query of a block, and what was found for the block; in any order.
    """
    shards = embedded_shards(ads, 0, gb_per_shard, is_exact, effort)
    blocks = query_blocks(*queries)
    if len(shards) == 1 and shards[0].num_bytes <= BYTES_HERE:
        index, _ = shards[0].open()
        for block in blocks:
            yield block["start"], search_index(index, _queries_of(block), k)
        return
    start_ray()
    share = max(num_cpus() // len(shards), 1)
    resources = ShardResources.of_free(min(share, most_cpus()))
    with user_errors():
        for block in stream_blocks(shards, blocks, k, resources, ads.parent / "attempts"):
            yield block["start"], (block["ads"], block["scores"])


def stream_blocks(
    shards: Sequence[Shard],
    blocks: Iterable[Block],
    k: int,
    resources: ShardResources,
    attempts: Path,
) -> Iterator[Block]:
    """Search ``shards`` for ``blocks``, as :func:`search_shards`; yields them in any order."""
    quiet_ray_data()
    items = list(blocks)
    streaming = ray.data.from_items(items, override_num_blocks=len(items))
    together, resources = _fit(shards, resources)
    later = [*shards]
    while later:
        group, later = later[-together:], later[:-together]
        streaming = through_shards(streaming, group, k, resources, attempts)
        if later:
            streaming = streaming.materialize()
    yield from streaming.iter_rows()


def through_shards(
    blocks: Dataset,
    shards: Sequence[Shard],
    k: int,
    resources: ShardResources,
    attempts: Path,
) -> Dataset:
    """Plan the search of ``shards`` for ``blocks``, a dataset with a Block in each row.

    All actors run at once. Other columns of the dataset pass through.
    """
    for shard in reversed(shards):  # merge_topk wants the highest rows first
        needs = resources.needs(shard)
        blocks = blocks.map(
            _SearchShard,
            fn_constructor_args=(shard, k, resources.num_threads, attempts),
            compute=ActorPoolStrategy(size=1),
            num_cpus=resources.num_cpus,
            memory=needs["memory"],
        )
    return blocks


class _SearchShard:
    """An actor that holds a shard and searches it for one block after another."""

    def __init__(self, shard: Shard, k: int, num_threads: int, attempts: Path) -> None:
        faiss.omp_set_num_threads(num_threads)
        self.k, self.attempts, self.shard = k, attempts, shard
        with limited_attempts(attempts, f"indexing {shard}"):
            self.index, self.first = shard.open()

    def __call__(self, block: Block) -> Block:
        queries = _queries_of(block)
        shape = len(queries), self.k
        ads, scores = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
        at_once = queries_at_once(self.k)
        with limited_attempts(self.attempts, f"{block['name']}, {self.shard}"):
            for start in range(0, len(queries), at_once):
                some = slice(start, start + at_once)
                best = [(block["ads"][some], block["scores"][some])] if "ads" in block else []
                found, similarities = search_index(self.index, queries[some], self.k)
                own = (np.where(found >= 0, found + self.first, -1), similarities)
                ads[some], scores[some] = merge_topk([*best, own], self.k)
        return {**block, "ads": ads, "scores": scores}


def queries_at_once(k: int) -> int:
    """Return how many queries a process finds or spells out k ads for at once.

    Passes of a search are left whole, so that it finds the same to the bit.
    """
    count = max(ANSWERS_AT_ONCE // k, 1)
    return count // QUERIES_PER_PASS * QUERIES_PER_PASS or count


def _queries_of(block: Block) -> NDArray[np.float32]:
    if "queries" in block:
        return np.asarray(block["queries"])
    return np.asarray(np.load(block["file"], mmap_mode="r")[block["start"] : block["stop"]])


def query_blocks(file: Path, num_queries: int) -> list[Block]:
    """Cut the first rows of an ``.npy`` file into blocks."""
    size = queries_per_block(num_queries)
    return [
        {
            "name": f"queries from {start}",
            "file": str(file),
            "start": start,
            "stop": min(start + size, num_queries),
        }
        for start in range(0, num_queries, size)
    ]


def _fit(shards: Sequence[Shard], resources: ShardResources) -> tuple[int, ShardResources]:
    """Wait for room; returns how many shards' actors can run at once, and with what.

    If no machine gets the CPUs free for one of them, they go without.
    """
    count = len(shards) if resources.num_cpus else 1
    largest = max(shards, key=lambda shard: shard.num_bytes)
    most = resources.needs(largest)
    while count > 1 and not has_room([most] * count, MOMENT_S):
        count = (count + 1) // 2
    if count > 1 or has_room([most], PATIENCE_S):
        return count, resources
    without = replace(resources, num_cpus=0)
    if resources.num_cpus and has_room([without.needs(largest)], MOMENT_S):
        return 1, without
    needed = f"{resources.num_cpus:g} CPUs and {most['memory'] / 1e9:.1f} GB of memory"
    raise ClusterError(
        f"no machine has had {needed} free in {PATIENCE_S} s, for a shard of the ads; make "
        f"shards smaller, or add machines"
    )
