"""Pairs of nodes that have something in common, such as an anchor or a click; and how many would.

Tables are read as streams; memory holds a sample of the clicks, and the edges of its nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Booleans, Int64s, click_pairs, list_entries
from ramen_ray.data.prepared.hashing import hash_strings, keyed_hash
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN
from ramen_ray.data.store.texts import fold

NUM_SHUFFLES = 10
MAX_CLICKS = 200_000
"""If there are more train clicks, this many are used, chosen by their hash."""
CLICKS_AT_ONCE = 1 << 16
_SAMPLE = NUM_SHUFFLES  # a hash key that no shuffle has


@dataclass(frozen=True)
class Shared:
    """How many of some pairs have a third thing in common, and how many by chance."""

    pairs: int  # clicks whose query and ad both have edges; or that a set of one side joins
    shared: int  # clicks whose query and ad share an anchor; or pairs that share a click
    by_chance: float  # ``shared`` if one end is shuffled among the pairs, on average

    @property
    def share(self) -> float:
        """``shared`` over ``pairs``."""
        return self.shared / self.pairs if self.pairs else 0.0

    @property
    def share_by_chance(self) -> float:
        """``by_chance`` over ``pairs``."""
        return self.by_chance / self.pairs if self.pairs else 0.0

    @property
    def lift(self) -> float:
        """``shared`` over ``by_chance``, which is at least what the shuffles can resolve."""
        return self.shared / max(self.by_chance, 1 / NUM_SHUFFLES)


def sample_clicks(dataset: Dataset) -> tuple[Int64s, Int64s]:
    """Return the query and the ad of each train click (clicks,), of at most ``MAX_CLICKS``."""
    draws, clicks, first = np.empty(0, dtype=np.uint64), np.empty((2, 0), dtype=np.int64), 0
    for rows in dataset.batches(TRAIN, ["query_id", "ad_ids"]):
        found = np.stack(click_pairs(rows))
        numbers = np.arange(first, first + found.shape[1])
        draws = np.concatenate([draws, keyed_hash((_SAMPLE,), numbers)])
        clicks = np.concatenate([clicks, found], axis=1)
        first += len(numbers)
        if len(draws) > MAX_CLICKS:
            lowest = np.sort(np.argpartition(draws, MAX_CLICKS)[:MAX_CLICKS])
            draws, clicks = draws[lowest], clicks[:, lowest]
    return clicks[0], clicks[1]


def joined_pairs(dataset: Dataset, name: str, side: str, nodes: Int64s) -> tuple[Int64s, Int64s]:
    """Return the rows (pairs,) of ``nodes`` (n,) that an anchor set joins.

    An anchor whose text is a node's joins that node to others, as in co-click graphs. Other anchors
    join nodes that have them in common. What there is more of counts.
    """
    edges = read_edges(dataset, name, side, nodes).tocoo()
    rows, anchors = edges.row.astype(np.int64), edges.col.astype(np.int64)
    texts = dataset.rows_with_ids(NODE_TABLES[side], nodes)["text"].combine_chunks()
    anchor_texts = (fold(batch["text"]) for batch in dataset.in_order(f"anchors/{name}"))
    node_of = [pc.fill_null(pc.index_in(one, fold(texts)), -1) for one in anchor_texts]
    named = np.concatenate(node_of).astype(np.int64)[anchors]
    is_other = (named >= 0) & (named != rows)
    direct = rows[is_other], named[is_other]
    order = np.lexsort((keyed_hash((_SAMPLE,), rows), anchors))
    rows, anchors = rows[order], anchors[order]
    first = np.searchsorted(anchors, anchors)
    following = np.arange(1, len(anchors) + 1)
    is_last = np.append(anchors[1:] != anchors[:-1], True)[: len(anchors)]
    following = np.where(is_last, first, following)  # the last of an anchor is joined to its first
    has_two = following != np.arange(len(anchors))
    common = rows[has_two], rows[following[has_two]]
    pairs = max(direct, common, key=lambda found: len(found[0]))
    chosen = np.argsort(keyed_hash((_SAMPLE,), np.arange(len(pairs[0]))))[:MAX_CLICKS]
    return pairs[0][chosen], pairs[1][chosen]


def read_clicks(dataset: Dataset, side: str, nodes: Int64s) -> csr_array:
    """Read the train clicks of some ``nodes`` (n,), of one side, as (n, nodes of the other)."""
    clicks = map(click_pairs, dataset.batches(TRAIN, ["query_id", "ad_ids"]))
    if side == "query":
        return _rows_of(dataset, side, nodes, clicks, dataset.num_rows("ads"))
    by_ad = ((ads, queries) for queries, ads in clicks)
    return _rows_of(dataset, side, nodes, by_ad, dataset.num_rows(TRAIN))


def read_edges(dataset: Dataset, anchor_set: str, side: str, nodes: Int64s) -> csr_array:
    """Read the edges of some ``nodes`` (n,), train queries or ads, as (n, anchors), 1 each."""
    table, columns = f"edges/{anchor_set}/{side}", [f"{side}_id", "anchor_id"]
    batches = dataset.batches(table, columns) if dataset.has(table) else ()
    edges = ((rows.column(0).to_numpy(), rows.column(1).to_numpy()) for rows in batches)
    return _rows_of(dataset, side, nodes, edges, dataset.num_rows(f"anchors/{anchor_set}"))


def _rows_of(
    dataset: Dataset,
    side: str,
    nodes: Int64s,
    pairs: Iterable[tuple[Int64s, Int64s]],
    num_columns: int,
) -> csr_array:
    """Pick the pairs of (node of the side, column) whose node is among ``nodes`` (n,)."""
    row_of = np.full(dataset.num_rows(NODE_TABLES[side]), -1)
    row_of[nodes] = np.arange(len(nodes))
    found = [np.empty((2, 0), dtype=np.int64)]
    for own, columns in pairs:
        rows = row_of[own]
        found.append(np.stack([rows, columns])[:, rows >= 0])
    rows, columns = np.concatenate(found, axis=1)
    return _ones(rows, columns, (len(nodes), num_columns))


def count_shared(one: csr_array, other: csr_array, rows: Int64s, other_rows: Int64s) -> Shared:
    """Count the pairs (n,) of a row of each matrix that have a column in common.

    A row that shuffling pairs with itself does not count.
    """
    orders = [np.argsort(keyed_hash((n,), np.arange(len(rows)))) for n in range(NUM_SHUFFLES)]
    by_chance = []
    for order in orders:
        dealt = other_rows[order]
        apart = (rows != dealt) if one is other else np.ones(len(rows), dtype=np.bool_)
        found = int(_flag_shared(one, other, rows[apart], dealt[apart]).sum())
        by_chance.append(found * len(rows) / max(int(apart.sum()), 1))
    shared = int(_flag_shared(one, other, rows, other_rows).sum())
    return Shared(len(rows), shared, float(np.mean(by_chance)))


def words_in_common(
    dataset: Dataset, sides: tuple[str, ...], pairs: tuple[Int64s, Int64s]
) -> Booleans:
    """Flag the pairs (n,) of a node of each of two sides whose texts share a word, in any case."""
    words, rows = [], []
    for side, nodes in zip(sides, pairs, strict=True):
        ids, of_pair = np.unique(nodes, return_inverse=True)
        texts = fold(dataset.rows_with_ids(NODE_TABLES[side], ids)["text"].combine_chunks())
        row, found = list_entries(pc.split_pattern_regex(texts, r"[^\p{L}\p{N}]+"))
        is_word = np.asarray(pc.not_equal(found, ""))
        words.append((row[is_word], hash_strings(found)[is_word], len(ids)))
        rows.append(of_pair)
    vocabulary = np.unique(np.concatenate([hashes for _, hashes, _ in words]))
    matrices = [
        _ones(row, np.searchsorted(vocabulary, hashes), (count, len(vocabulary)))
        for row, hashes, count in words
    ]
    return _flag_shared(*matrices, *rows)


def _flag_shared(one: csr_array, other: csr_array, rows: Int64s, other_rows: Int64s) -> Booleans:
    """Flag the pairs (n,) of a row of each matrix that have an entry in the same column."""
    flags = np.zeros(len(rows), dtype=np.bool_)
    for start in range(0, len(rows), CLICKS_AT_ONCE):
        some = slice(start, start + CLICKS_AT_ONCE)
        both = one[rows[some]].multiply(other[other_rows[some]]).tocsr()
        flags[some] = np.diff(both.indptr) > 0
    return flags


def _ones(rows: Int64s, columns: Int64s, shape: tuple[int, int]) -> csr_array:
    return csr_array((np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=shape)
