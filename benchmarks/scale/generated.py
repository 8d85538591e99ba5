"""A user's tables of a given size, with degrees that follow power laws; seeded, in blocks.

Texts have 3 to 8 words of MiniLM's vocabulary, by Zipf's law. The ad or anchor of rank r is drawn
in proportion to 1 / r^0.9; a node has k edges or more with a probability that falls as 1 / k^1.8.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import cumulative_sum
from ramen_ray.method.model.pretrained import load_tokenizer
from ramen_ray.presets import MINILM

CLICKS_PER_QUERY = 2
EVENTS_PER_QUERY, EVENTS_PER_SESSION, SECONDS_PER_EVENT = 5, 6, 10.0
FIRST_EVENT = 1e9
RANK_EXPONENT, DEGREE_EXPONENT = 0.9, 1.8
PRIME = 2_654_435_761
NODES_PER_BLOCK = 200_000


class Shape(NamedTuple):
    """Sizes of the tables: as many ads and anchors as queries."""

    queries: int
    edges_per_node: int

    def __str__(self) -> str:
        return f"{self.queries}x{self.edges_per_node}"


def generate(folder: Path, shape: Shape, with_log: bool) -> None:
    """Write the tables query, ad, anchor, clicks, query_edges, ad_edges and, if asked for, log."""
    count = shape.queries
    tables = {kind: _nodes(kind, count, n) for n, kind in enumerate(("query", "ad", "anchor"))}
    tables |= {f"{kind}_edges": _edges(kind, shape, n) for n, kind in enumerate(("query", "ad"))}
    tables["clicks"] = _clicks(count)
    if with_log:
        tables["log"] = _log(count)
    for name, blocks in tables.items():
        (folder / name).mkdir()
        for number, block in enumerate(blocks):
            pq.write_table(block, folder / name / f"{number:06d}.parquet")


def texts(draw: np.random.Generator, count: int) -> pa.Array:
    """Join 3 to 8 words whose frequencies fall as in Zipf's law."""
    words, cumulative = _words()
    lengths = draw.integers(3, 9, count)
    chosen = np.searchsorted(cumulative, draw.random(lengths.sum()))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), words.take(pa.array(chosen)))
    return pc.binary_join(lists, " ")


@cache
def _words() -> tuple[pa.Array, NDArray[np.float64]]:
    """Return words that are one token each, and the running sum of their probabilities."""
    vocabulary = load_tokenizer(MINILM).get_vocab()
    known = sorted(
        word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2
    )
    words = np.random.default_rng(0).permutation(known)
    cumulative = cumulative_sum(1.0 / np.arange(1, len(words) + 1))[1:]
    return pa.array(words.tolist()), cumulative / cumulative[-1]


def _blocks(count: int, *seed: int) -> Iterator[tuple[Int64s, np.random.Generator]]:
    """Yield the numbers of each block of nodes, and a generator of its own."""
    for start in range(0, count, NODES_PER_BLOCK):
        draw = np.random.default_rng([count, *seed, start])
        yield np.arange(start, min(start + NODES_PER_BLOCK, count)), draw


def _nodes(kind: str, count: int, seed: int) -> Iterator[pa.Table]:
    for numbers, draw in _blocks(count, seed):
        yield pa.table({f"{kind}_id": _ids(kind, numbers), "text": texts(draw, len(numbers))})


def _clicks(count: int) -> Iterator[pa.Table]:
    for numbers, draw in _blocks(count, 3):
        queries = np.repeat(numbers, CLICKS_PER_QUERY)
        ads = _ranked(draw, count, len(queries))
        yield pa.table({"query_id": _ids("query", queries), "ad_id": _ids("ad", ads)})


def _edges(kind: str, shape: Shape, seed: int) -> Iterator[pa.Table]:
    """Yield a side's edges, weighted, without repeats."""
    least = shape.edges_per_node * (DEGREE_EXPONENT - 1) / DEGREE_EXPONENT
    for numbers, draw in _blocks(shape.queries, 4, seed):
        degrees = least * draw.random(len(numbers)) ** (-1 / DEGREE_EXPONENT)
        degrees = np.minimum(degrees + draw.random(len(numbers)), shape.queries // 10)
        nodes = np.repeat(numbers, degrees.astype(np.int64))
        pairs = np.unique(nodes * shape.queries + _ranked(draw, shape.queries, len(nodes)))
        nodes, anchors = np.divmod(pairs, shape.queries)
        yield pa.table(
            {
                f"{kind}_id": _ids(kind, nodes),
                "anchor": _ids("anchor", anchors),
                "weight": draw.random(len(nodes)).astype(np.float32) + 0.1,
            }
        )


def _log(count: int) -> Iterator[pa.Table]:
    """Yield sessions about a topic each: queries near it, and for half of them a click."""
    for numbers, draw in _blocks(EVENTS_PER_QUERY * count, 6):
        session = numbers // EVENTS_PER_SESSION
        topic = _ranked(draw, count, EVENTS_PER_SESSION + len(numbers))[session - session[0]]
        queries = (topic + np.minimum(draw.zipf(1.5, len(numbers)), count)) % count
        clicked = pa.array(draw.random(len(numbers)) < 0.5)
        yield pa.table(
            {
                "session_id": session,
                "time": FIRST_EVENT + numbers * SECONDS_PER_EVENT,
                "query": _ids("query", queries),
                "ad_id": pc.if_else(clicked, _ids("ad", queries), ""),
            }
        )


def _ranked(draw: np.random.Generator, limit: int, count: int) -> Int64s:
    """Draw numbers below ``limit`` by their ranks, which lie scattered."""
    span = limit ** (1 - RANK_EXPONENT) - 1
    ranks = (1 + span * draw.random(count)) ** (1 / (1 - RANK_EXPONENT)) - 1
    return np.minimum(ranks.astype(np.int64), limit - 1) * PRIME % limit


def _ids(kind: str, numbers: Int64s) -> pa.Array:
    return pc.binary_join_element_wise(kind, pa.array(numbers).cast(pa.string()), "-")
