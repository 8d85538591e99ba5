"""Bring a user's own edges into a dataset directory, as an anchor set."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.anchor_sets import Edges, add_anchor_set, check_name
from ramen_ray.data.dataset import Dataset, DatasetError
from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.hashing import UInt64s, hash_strings
from ramen_ray.data.nodes import Booleans, Int64s, Nodes
from ramen_ray.data.sources import Block, as_numbers, as_strings, find_pieces, read_piece

CORRECT = "correct these rows or leave them out"
SKIP = "correct these rows, or leave them out with --skip-unknown"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EdgeList:
    """Where the edges are: CSV, TSV, JSON lines or parquet; files, folders or globs.

    Attributes:
        query_edges: Edges of train queries.
        ad_edges: Edges of ads.
        anchors: Table of the anchors' ids and texts; without it, edges name anchors by text.
        query_column: Names a train query: your id of it, its text, or, where the dataset has no
            ids of yours, its number.
        ad_column: Names an ad, likewise.
        anchor_column: Names an anchor: its text, or its id in the table of anchors.
        weight_column: An edge's weight, above 0; without it all weigh 1.
        anchor_id_column: Column of the table of anchors.
        anchor_text_column: Column of the table of anchors.
        skip_unknown: Leave out edges of nodes and anchors that are not known, and count them.
    """

    query_edges: str | None = None
    ad_edges: str | None = None
    anchors: str | None = None
    query_column: str = "query"
    ad_column: str = "ad_id"
    anchor_column: str = "anchor"
    weight_column: str | None = None
    anchor_id_column: str = "anchor_id"
    anchor_text_column: str = "text"
    skip_unknown: bool = False


def add_edge_list(
    dataset_path: Path, name: str, edge_list: EdgeList, replace: bool = False
) -> dict[str, int]:
    """Add an anchor set from a user's edges to a dataset directory.

    An edge that stands there several times becomes one that has their weights' sum.

    Returns:
        Row counts of what was written, nodes without edges, and edges skipped or joined.

    Raises:
        DatasetError: names every file and row that is wrong; the name is taken; no edge is left.
    """
    dataset = Dataset(dataset_path)
    check_name(dataset, name, replace)
    if edge_list.query_edges is None and edge_list.ad_edges is None:
        raise DatasetError("give edges: --query-edges, --ad-edges or both")
    reader = _Reader(edge_list)
    if edge_list.anchors is not None:
        reader.read_anchors(edge_list.anchors)
    named = {}
    if edge_list.query_edges is not None:
        nodes = Nodes.of(dataset, "queries/train")
        named["query"] = reader.read_edges(edge_list.query_edges, edge_list.query_column, nodes)
    if edge_list.ad_edges is not None:
        nodes = Nodes.of(dataset, "ads")
        named["ad"] = reader.read_edges(edge_list.ad_edges, edge_list.ad_column, nodes)
    raise_errors(f"the edge list of anchor set {name!r}", reader.findings)
    hashes, first = np.unique(np.concatenate(reader.hashes), return_index=True)
    texts = pa.concat_arrays(reader.texts).take(pa.array(first))
    edges = {side: _joined(found, hashes) for side, found in named.items()}
    counts = dict(reader.skipped)
    for side, found in named.items():
        counts[f"repeated {side} edges joined"] = len(found.nodes) - len(edges[side])
    made = {"made_by": "edges", "settings": asdict(edge_list)}
    return add_anchor_set(dataset_path, name, texts, edges, made, replace) | counts


@dataclass(frozen=True)
class _NamedEdges:
    """Edges whose anchors are the hashes of their names; all fields (edges,)."""

    nodes: Int64s
    anchors: UInt64s
    weights: Floats


def _joined(named: _NamedEdges, hashes: UInt64s) -> Edges:
    """Number the anchors by their place in ``hashes`` (anchors,), and add up repeated edges."""
    pairs = named.nodes * len(hashes) + np.searchsorted(hashes, named.anchors)
    distinct, edge = np.unique(pairs, return_inverse=True)
    weights = np.bincount(edge, named.weights, minlength=len(distinct))
    return Edges(distinct // len(hashes), distinct % len(hashes), weights)


@dataclass
class _Reader:
    """Reads edges and anchors, and gathers what is wrong with them.

    Attributes:
        edge_list: the columns.
        findings: what is wrong.
        skipped: how many edges were left out, by reason.
        hashes: of the names of the anchors, a list of arrays.
        texts: the anchors' texts beside ``hashes``.
    """

    edge_list: EdgeList
    findings: list[Finding] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    hashes: list[UInt64s] = field(default_factory=list)
    texts: list[pa.Array] = field(default_factory=list)

    def read_anchors(self, source: str) -> None:
        """Read the table of anchors."""
        id_column, text_column = self.edge_list.anchor_id_column, self.edge_list.anchor_text_column
        seen = np.empty(0, dtype=np.uint64)
        for piece in find_pieces(source, [id_column, text_column]):
            for block in read_piece(piece):
                self.findings += block.findings
                hashes = hash_strings(self._filled(block, id_column)[0])
                self.hashes.append(hashes)
                self.texts.append(self._filled(block, text_column)[0])
                first = np.unique(hashes, return_index=True)[1]
                repeated = np.isin(hashes, seen)
                repeated[np.setdiff1d(np.arange(len(hashes)), first)] = True
                self._report(block, id_column, repeated, "the anchor is there twice")
                seen = np.union1d(seen, hashes)
        if not self.hashes:
            raise DatasetError(f"{source} holds no rows")

    def read_edges(self, source: str, node_column: str, nodes: Nodes) -> _NamedEdges:
        """Read the edges of one side, which name ``nodes`` in ``node_column``."""
        weight_column = self.edge_list.weight_column
        columns = [node_column, self.edge_list.anchor_column]
        columns += [] if weight_column is None else [weight_column]
        parts = [
            self._edges_of(block, node_column, nodes)
            for piece in find_pieces(source, columns)
            for block in read_piece(piece)
        ]
        if not parts:
            raise DatasetError(f"{source} holds no rows")
        return _NamedEdges(
            np.concatenate([part.nodes for part in parts]),
            np.concatenate([part.anchors for part in parts]),
            np.concatenate([part.weights for part in parts]),
        )

    def _edges_of(self, block: Block, node_column: str, nodes: Nodes) -> _NamedEdges:
        self.findings += block.findings
        cells, no_node = self._filled(block, node_column)
        position, node = nodes.named(cells)
        unknown = ~no_node
        unknown[position] = False
        side = "ad" if nodes.key else "train query"
        self._unknown(block, node_column, unknown, side)
        anchors, no_anchor = self._anchors_of(block)
        weights = self._weights(block)
        kept = ~(no_node | no_anchor)[position]
        position = position[kept]
        return _NamedEdges(node[kept], anchors[position], weights[position])

    def _anchors_of(self, block: Block) -> tuple[UInt64s, Booleans]:
        """Return the hashes of the anchors' names (rows,), and which name none."""
        column = self.edge_list.anchor_column
        cells, no_anchor = self._filled(block, column)
        names = cells.dictionary_encode()
        hashes = hash_strings(names.dictionary)[names.indices.to_numpy()]
        if self.edge_list.anchors is None:
            self.hashes.append(hash_strings(names.dictionary))
            self.texts.append(names.dictionary)
            return hashes, no_anchor
        unknown = ~np.isin(hashes, np.concatenate(self.hashes)) & ~no_anchor
        self._unknown(block, column, unknown, "anchor")
        return hashes, no_anchor | unknown

    def _weights(self, block: Block) -> Floats:
        column = self.edge_list.weight_column
        if column is None:
            return np.ones(block.rows.num_rows)
        weights, bad = as_numbers(block.rows[column])
        self._report(block, column, bad | (weights <= 0), "a weight must be a number above 0")
        return weights

    def _filled(self, block: Block, column: str) -> tuple[pa.StringArray, Booleans]:
        """Return the trimmed cells (rows,), and which are empty, which they should not be."""
        cells, empty = as_strings(block.rows[column])
        self._report(block, column, empty, "the cell is empty")
        return pc.utf8_trim_whitespace(cells), empty

    def _unknown(self, block: Block, column: str, unknown: Booleans, what: str) -> None:
        if self.edge_list.skip_unknown:
            self.skipped[f"edges skipped, unknown {what}"] += int(unknown.sum())
        else:
            self._report(block, column, unknown, f"there is no such {what}", SKIP)

    def _report(
        self, block: Block, column: str, bad: Booleans, message: str, advice: str = CORRECT
    ) -> None:
        if bad.any():
            self.findings.append(block.finding(column, bad, message, advice))
