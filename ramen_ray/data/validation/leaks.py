"""Edges and clicks that give the answers of held-out queries away, found by the texts they join.

Texts count as equal if :func:`~ramen_ray.data.store.texts.fold` makes them so. Tables are read
as streams; memory holds eight bytes for each text and each held-out click.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.checks.reading import RowBatch, read_batches
from ramen_ray.data.prepared.hashing import find, hash_strings, mix
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.lists import list_entries
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT, schema_of
from ramen_ray.data.store.texts import fold


def table_batches(dataset: Dataset, table: str, columns: list[str]) -> Iterator[RowBatch]:
    """Stream some columns of a table."""
    for batch in read_batches(dataset, table):
        yield RowBatch(batch.file, batch.first_row, batch.rows.select(columns))


def ids(column: pa.Array) -> Int64s:
    """Return ids (n,), -1 for null."""
    return np.asarray(pc.fill_null(column, -1))


Protocol = Literal["strict", "as-published"]
"""Whether edges that join a held-out query to its answer are left out of a graph, or kept."""

LEAKING_EDGES = "edges that join a held-out query to its answer"
NODE_TABLES = {"query": "queries/train", "ad": "ads"}
HELD_OUT_TABLES = [f"queries/{split}" for split in (*SPLITS[1:], ZERO_SHOT)]


@dataclass(frozen=True)
class Leaks:
    """Finds the edges and train clicks that join a held-out query's text to an answer's text.

    Attributes:
        answers: (held-out clicks,) uint64, ascending, a key of each pair of query text and ad text.
        texts: (nodes,) uint64 by side, hashes of the texts of train queries and ads.
    """

    answers: UInt64s
    texts: Mapping[str, UInt64s]

    @classmethod
    def from_dataset(cls, dataset: Dataset, tables: Collection[str] | None = None) -> "Leaks":
        """Read the queries of all splits, and the ads.

        Args:
            dataset: may have wrong ids and texts, which are passed over.
            tables: those that can be read; default all. Train queries and ads must be among them.

        Raises:
            UnreadableFileError: a file is damaged.
        """
        tables = dataset.tables if tables is None else tables
        texts = {side: text_hashes(dataset, table) for side, table in NODE_TABLES.items()}
        answers = [np.empty(0, dtype=np.uint64)]
        for table in filter(tables.__contains__, HELD_OUT_TABLES):
            for batch in table_batches(dataset, table, ["text", "ad_ids"]):
                rows, ads = _clicks(batch, len(texts["ad"]))
                queries = hash_strings(fold(batch.texts("text")))
                answers.append(_pair_keys(queries[rows], texts["ad"][ads]))
        return cls(np.unique(np.concatenate(answers)), texts)

    def among(self, side: str, nodes: Int64s, anchor_texts: UInt64s) -> Booleans:
        """Flag the edges (n,) that join a held-out query and its answer; either can be the node.

        Args:
            side: of the nodes, ``query`` or ``ad``.
            nodes: (n,) ids of train queries or ads.
            anchor_texts: (n,) hashes of the anchors' texts, as of :func:`text_hashes`.
        """
        node_texts = self.texts[side][nodes]
        return self._are_answers(node_texts, anchor_texts) | self._are_answers(
            anchor_texts, node_texts
        )

    def edges(
        self, dataset: Dataset, anchor_set: str, side: str
    ) -> Iterator[tuple[RowBatch, Int64s]]:
        """Stream a table of edges in batches, with the rows of each that leak."""
        anchor_texts = text_hashes(dataset, f"anchors/{anchor_set}")
        table = f"edges/{anchor_set}/{side}"
        for batch in table_batches(dataset, table, schema_of(table).names[:2]):
            nodes, anchors = (ids(column) for column in batch.rows.columns)
            known = (nodes >= 0) & (nodes < len(self.texts[side]))
            known &= (anchors >= 0) & (anchors < len(anchor_texts))
            rows = np.flatnonzero(known)
            yield batch, rows[self.among(side, nodes[rows], anchor_texts[anchors[rows]])]

    def _are_answers(self, queries: UInt64s, ads: UInt64s) -> Booleans:
        return find(_pair_keys(queries, ads), self.answers) >= 0


def text_hashes(dataset: Dataset, table: str) -> UInt64s:
    """Hash the folded texts (rows,) of a table by id; 0 where no row has the id.

    Raises:
        UnreadableFileError: a file is damaged.
    """
    hashes = np.zeros(dataset.num_rows(table), dtype=np.uint64)
    for batch in table_batches(dataset, table, [schema_of(table).names[0], "text"]):
        numbers = ids(batch.rows.column(0))
        known = (numbers >= 0) & (numbers < len(hashes))
        hashes[numbers[known]] = hash_strings(fold(batch.texts("text")))[known]
    return hashes


def _clicks(batch: RowBatch, num_ads: int) -> tuple[Int64s, Int64s]:
    """Return the row within the batch and the ad of each click (clicks,) on an ad that exists."""
    rows, entries = list_entries(batch.rows["ad_ids"])
    ads = ids(entries)
    known = (ads >= 0) & (ads < num_ads)
    return rows[known], ads[known]


def _pair_keys(one: UInt64s, other: UInt64s) -> UInt64s:
    """Hash pairs (n,) of hashes (n,); the order within a pair counts."""
    return mix(mix(one) ^ other)
