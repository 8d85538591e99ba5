"""The index of a retriever in shards, each held by another process; an exact search stays exact."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.tracking.registry import Registry

if TYPE_CHECKING:
    from ramen_ray.answering.encoding import Embeddings
    from ramen_ray.answering.ranking import Flags, TopK
    from ramen_ray.answering.retriever import Search

SEARCHES_AT_ONCE = 4


class HeldShard:
    """A shard of the index of a version."""

    def __init__(self, number: int, count: int, registry: Registry, uri: str) -> None:
        """Load one of ``count`` shards, or raise the errors of what loads it."""
        from ramen_ray.answering.retriever import INDEX
        from ramen_ray.method.retrieval.shards import index_shard

        with owned_folder() as aside:
            folder = registry.download(uri, aside, may_stay=True)
            shard = index_shard(folder / INDEX, number, count)
            self._index, self._numbers = shard.open()
        self._rows = slice(shard.rows.start, shard.rows.stop)

    def search(self, vectors: "Embeddings", k: int, among: "Flags | None") -> "TopK":
        """Find the shard's best ads, as a Search does; ``among`` flags ads of all shards."""
        from ramen_ray.answering.ranking import search_index

        flags = None if among is None else among[self._rows]
        return search_index(self._index, vectors, k, self._numbers, flags)


def search_of(shards: Sequence[Callable[..., Any]]) -> "Search":
    """Return the search of all shards at the same time, each by a Search of its own."""
    from ramen_ray.answering.ranking import merge_topk

    threads = ThreadPoolExecutor(SEARCHES_AT_ONCE * len(shards))

    def search(vectors: "Embeddings", k: int, among: "Flags | None") -> "TopK":
        found = threads.map(lambda shard: shard(vectors, k, among), shards)
        return merge_topk([*found], k)

    return search
