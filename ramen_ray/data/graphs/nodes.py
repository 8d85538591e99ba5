"""Find the queries and ads that a user's cells name, by the user's ids or by text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.prepared.hashing import HashIndex, find, hash_strings, keyed_hash
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.file_arrays import into_files
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT
from ramen_ray.data.store.texts import fold
from ramen_ray.data.validation.leaks import Leaks, Protocol

HELD_OUT = (*SPLITS[1:], ZERO_SHOT)


@dataclass(frozen=True)
class NodeIndex:
    """The train queries or the ads of a dataset: 20 bytes a node, 32 with the user's own ids.

    Attributes:
        key: makes the hashes of queries differ from those of ads.
        text_hashes: (nodes,) uint64, equal for nodes of equal text, without the spaces around it.
        by_text: the nodes by ``text_hashes``.
        by_id: the nodes by the user's own ids; empty if the dataset has none.
    """

    key: int
    text_hashes: UInt64s
    by_text: HashIndex
    by_id: HashIndex

    @classmethod
    def from_table(cls, dataset: Dataset, table: str) -> "NodeIndex":
        """Read the names of ``table``'s rows, as a stream."""
        key = int(table == "ads")
        texts = keyed_hash((key,), _column_hashes(dataset, table, "text"))
        by_id = HashIndex.from_hashes(_column_hashes(dataset, table, "source_id"))
        return cls(key, texts, HashIndex.from_hashes(texts), by_id)

    def identify(self, cells: pa.StringArray, by_number: bool = False) -> tuple[UInt64s, Int64s]:
        """Return each cell's text hash (n,) and the first node (n,) that it names, or -1.

        A cell that is not a node's id is taken as a text and then, with ``by_number`` and if the
        dataset has no user ids, as a node's number.
        """
        hashes = hash_strings(cells)
        texts = keyed_hash((self.key,), hashes)
        node = self.by_id.first(hashes)
        node = np.where(node >= 0, node, self.by_text.first(texts))
        if by_number:
            node = np.where(node >= 0, node, self._numbered(cells))
        texts[node >= 0] = self.text_hashes[node[node >= 0]]
        return texts, node

    def named(self, cells: pa.StringArray) -> tuple[Int64s, Int64s]:
        """Return all nodes that cells (n,) name, as (position, node) pairs.

        A cell names a node by the user's id, else all nodes with its text, else, if the dataset has
        no user ids, a node by its number.
        """
        hashes = hash_strings(cells)
        node = self.by_id.first(hashes)
        texts = np.flatnonzero(node < 0)
        position, with_text = self.by_text.all(keyed_hash((self.key,), hashes[texts]))
        position = texts[position]
        node = np.where(node >= 0, node, self._numbered(cells))
        node[position] = -1
        single = np.flatnonzero(node >= 0)
        return np.concatenate([single, position]), np.concatenate([node[single], with_text])

    def _numbered(self, cells: pa.StringArray) -> Int64s:
        if len(self.by_id.hashes):
            return np.full(len(cells), -1)
        digits = pc.if_else(pc.match_substring_regex(cells, r"^\d{1,18}$"), cells, "-1")
        numbers = digits.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return np.where(numbers < len(self.text_hashes), numbers, -1)


@dataclass(frozen=True)
class HeldOut:
    """The validation and test queries, by folded text and by the user's id.

    Attributes:
        texts: (texts,) uint64, ascending, hashes of folded texts.
        ids: (ids,) uint64, ascending.
        train: (train queries,) bool, which train queries also have such a text.
    """

    texts: UInt64s
    ids: UInt64s
    train: Booleans

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> "HeldOut":
        """Read the queries of all held-out splits, as a stream."""
        tables = [f"queries/{split}" for split in HELD_OUT if dataset.has(f"queries/{split}")]
        texts = [_column_hashes(dataset, table, "text", fold) for table in tables]
        ids = [_column_hashes(dataset, table, "source_id") for table in tables]
        folded = np.unique(np.concatenate(texts))
        train = _column_hashes(dataset, "queries/train", "text", fold)
        return cls(folded, np.unique(np.concatenate(ids)), np.isin(train, folded))

    def holds(self, cells: pa.StringArray, nodes: Int64s) -> Booleans:
        """Flag cells (n,) of held-out queries; ``nodes`` (n,) are their train queries, or -1."""
        by_node = (nodes >= 0) & self.train[np.maximum(nodes, 0)]
        return by_node | self.has_texts(cells) | self.has_ids(cells)

    def has_texts(self, cells: pa.StringArray) -> Booleans:
        """Flag the cells (n,) that are a held-out query's text, up to case and white space."""
        return contains(self.texts, hash_strings(fold(cells)))

    def has_ids(self, cells: pa.StringArray) -> Booleans:
        """Flag the cells (n,) that are the user's id of a held-out query."""
        return contains(self.ids, hash_strings(cells))


@dataclass(frozen=True)
class KnownNodes:
    """What a user's edges or log can name, and what training must not see.

    Attributes:
        queries: the train queries.
        ads: the ads.
        held_out: the validation and test queries.
        leaks: finds edges that give answers away; None if such edges are kept.
    """

    queries: NodeIndex
    ads: NodeIndex
    held_out: HeldOut
    leaks: Leaks | None

    @classmethod
    def in_files(cls, dataset: Dataset, protocol: Protocol, file: Path) -> "KnownNodes":
        """Index a dataset in files whose names begin with ``file``; for a task, and for others."""
        known = cls(
            NodeIndex.from_table(dataset, "queries/train"),
            NodeIndex.from_table(dataset, "ads"),
            HeldOut.from_dataset(dataset),
            Leaks.from_dataset(dataset) if protocol == "strict" else None,
        )
        return into_files(known, file)


def contains(ascending: UInt64s, hashes: UInt64s) -> Booleans:
    """Flag those of ``hashes`` (n,) that are among ``ascending``."""
    return find(hashes, ascending) >= 0


def _column_hashes(
    dataset: Dataset,
    table: str,
    column: str,
    normalize: Callable[[pa.StringArray], pa.StringArray] = pc.utf8_trim_whitespace,
) -> UInt64s:
    """Hash a column (rows,), in the order of ids; empty if the table does not have it."""
    names = dataset.schema(table).names
    if column not in names:
        return np.empty(0, dtype=np.uint64)
    hashes = np.empty(dataset.num_rows(table), dtype=np.uint64)
    for ids, values in dataset.batches(table, [names[0], column]):
        hashes[ids.to_numpy()] = hash_strings(normalize(values))
    return hashes
