"""Links of queries to the anchors of a bank: the dataset's own, or a linker's.

A bank has the anchors of one anchor set, or of several, one set after another.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, HashIndex, ragged_positions
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import HELD_OUT_SIDES
from ramen_ray.method.metrics.ranking import find_hits, precision_at, recall_at
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import drop_filtered, most_filters, search

LINKER_DEPTH = 10


def bank_texts(data: Prepared, anchor_sets: Sequence[str]) -> TokenTable:
    """Return the texts of a bank's anchors."""
    return one_after_another([data.anchors(name) for name in anchor_sets])


def train_links(data: Prepared, anchor_sets: Sequence[str]) -> Csr:
    """Return the edges of the train queries, query rows x anchors of the bank, without weights."""
    sizes = [len(data.anchors(name)) for name in anchor_sets]
    return side_by_side([data.edges(name, "query") for name in anchor_sets], sizes)


def held_out_links(dataset: Dataset, anchor_sets: Sequence[str], split: str) -> Csr | None:
    """Return the true edges of the queries of a split, likewise; None if a set has none."""
    tables = [f"edges/{name}/{HELD_OUT_SIDES.get(split)}" for name in anchor_sets]
    if not all(map(dataset.has, tables)):
        return None
    num_queries = dataset.num_rows(f"queries/{split}")
    ids = [[column.to_numpy() for column in dataset.read(table).columns[:2]] for table in tables]
    parts = [Csr.from_pairs(queries, anchors, num_queries) for queries, anchors in ids]
    return side_by_side(parts, [dataset.num_rows(f"anchors/{name}") for name in anchor_sets])


def first_links(edges: Csr, num_links: int) -> NDArray[np.int32]:
    """Return the first links (rows, num_links) of each row of ``edges``, then -1."""
    links = np.full((edges.num_rows, num_links), -1, dtype=np.int32)
    degrees = np.minimum(np.diff(edges.indptr), num_links)
    rows = np.repeat(np.arange(edges.num_rows), degrees)
    places = ragged_positions(np.zeros_like(degrees), degrees)
    links[rows, places] = edges.indices[edges.indptr[rows] + places]
    return links


def nearest_anchors(
    model: DualEncoder,
    data: Prepared,
    anchor_sets: Sequence[str],
    split: str,
    num_links: int,
) -> NDArray[np.int32]:
    """Return the nearest anchors (queries, num_links) of a split's queries, best first, then -1.

    ``model`` was trained with the bank's anchors as ads, or with any ads: then its encoder answers.
    An anchor with a query's own text is left out if no train query is linked to its own text: it
    would be the nearest of all, and never be right.
    """
    queries = data.queries[split]
    anchors = bank_texts(data, anchor_sets)
    embedded = model.embed_ads(anchors, np.arange(len(anchors)))
    asking = model.embed_queries(queries, np.arange(len(queries)))
    own_texts = np.empty((0, 2), dtype=np.int64)
    if not links_own_text(data, anchor_sets):
        own_texts = np.stack(HashIndex.from_hashes(anchors.hashes).all(queries.hashes), axis=1)
    nearest = search(asking, embedded, num_links + most_filters(own_texts), model.device.index)
    return drop_filtered(nearest, own_texts, num_links)[0].astype(np.int32)


def links_own_text(data: Prepared, anchor_sets: Sequence[str]) -> bool:
    """Say whether a train query is linked to an anchor with its own text."""
    edges = train_links(data, anchor_sets)
    rows, linked = edges.gather(np.arange(edges.num_rows))
    queries = data.queries["train"]
    anchors = bank_texts(data, anchor_sets)
    return bool((queries.hashes[rows] == anchors.hashes[linked]).any())


def link_figures(
    anchors: NDArray[Any], num_links: int, edges: Csr | None, is_known: Booleans
) -> dict[str, float]:
    """Measure a linker's ``anchors`` (queries, at least 10), best first, -1 after the last.

    The first ``num_links`` are links. Returns ``known``, the share of links to anchors that
    ``is_known`` (anchors,) marks, and over the queries with true edges, if known, P@3 and R@10.
    """
    links = anchors[:, :num_links]
    figures = {"known": float(is_known[links[links >= 0]].mean())}
    if edges is None:
        return figures
    rows = edges.filled_rows
    hits = find_hits(anchors, edges)[rows]
    degrees = edges.degrees(rows)
    figures["P@3"] = float(precision_at(hits, 3).mean())
    figures["R@10"] = float(recall_at(hits, degrees, LINKER_DEPTH).mean())
    return figures


def side_by_side(parts: Sequence[Csr], num_columns: Sequence[int]) -> Csr:
    """Join tables of the same rows, without weights: columns follow those of the ones before."""
    if len(parts) == 1:
        return Csr(parts[0].indptr, parts[0].indices)
    every_row = np.arange(parts[0].num_rows)
    starts = np.cumsum([0, *num_columns])
    rows, columns = zip(*(part.gather(every_row) for part in parts), strict=True)
    shifted = [part_columns + start for part_columns, start in zip(columns, starts, strict=False)]
    return Csr.from_pairs(np.concatenate(rows), np.concatenate(shifted), len(every_row))


def one_after_another(tables: Sequence[TokenTable]) -> TokenTable:
    """Join tables: the texts of each follow those of the ones before; in memory if several."""
    if len(tables) == 1:
        return tables[0]
    lengths = np.concatenate([np.diff(table.offsets) for table in tables])
    return TokenTable(
        np.concatenate([table.token_ids for table in tables]),
        np.append(0, lengths.cumsum()),
        np.concatenate([table.hashes for table in tables]),
    )
