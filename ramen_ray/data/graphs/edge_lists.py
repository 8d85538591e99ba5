"""Bring a user's own edges into a dataset directory, as an anchor set."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Float64s, Int64s, UInt64s
from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.graphs.anchor_sets import Edges, add_anchor_set, check_name
from ramen_ray.data.graphs.nodes import HeldOut, NodeIndex, contains
from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.sources import Block, as_numbers, as_strings, find_pieces, read_piece
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.validation import check

ADVICE = "correct these rows, or leave them out with --skip-bad-rows"


@dataclass(frozen=True)
class EdgeList:
    """Where the edges are: CSV, TSV, JSON lines or parquet; files, folders or globs.

    Attributes:
        query_edges: Edges of queries; those of validation and test queries are left out.
        ad_edges: Edges of ads.
        anchors: Table of the anchors' ids and texts; without it, edges name anchors by text.
        query_column: Names a query: your id of it, its text, or, where the dataset has no ids of
            yours, its number among the train queries.
        ad_column: Names an ad: your id of it, its text, or, where the dataset has no ids of yours,
            its number.
        anchor_column: Names an anchor: its text, or its id in the table of anchors.
        weight_column: An edge's weight, above 0; without it all weigh 1.
        anchor_id_column: Column of the table of anchors.
        anchor_text_column: Column of the table of anchors.
        skip_bad_rows: Leave out and count rows with empty cells, bad weights, or queries, ads and
            anchors that are not known, instead of refusing them.
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
    skip_bad_rows: bool = False

    @property
    def tables(self) -> dict[str, tuple[str, list[str]]]:
        """The tables that are given, with the columns to read: anchors, query, ad."""
        of_edge = [self.anchor_column, *([self.weight_column] if self.weight_column else [])]
        named = {
            "anchors": (self.anchors, [self.anchor_id_column, self.anchor_text_column]),
            "query": (self.query_edges, [self.query_column, *of_edge]),
            "ad": (self.ad_edges, [self.ad_column, *of_edge]),
        }
        return {kind: (source, names) for kind, (source, names) in named.items() if source}


@dataclass(frozen=True)
class Named:
    """The nodes that cells name; a cell may name several nodes, or none.

    Attributes:
        positions: (pairs,) places of cells.
        nodes: (pairs,) what they name.
        left_out: which cells (cells,) name a node that shall have no edges, by what these are.
    """

    positions: Int64s
    nodes: Int64s
    left_out: Mapping[str, Booleans]


Naming = Callable[[pa.StringArray], Named]


def add_edge_list(
    dataset_path: Path, name: str, edge_list: EdgeList, replace: bool = False
) -> dict[str, int]:
    """Add an anchor set from a user's edges to a dataset directory.

    Returns:
        Row counts of what was written, nodes without edges, and edges left out or joined.

    Raises:
        DatasetError: the dataset is not usable; the name is taken; names every file and row of the
            edges that is wrong; no edge is left.
    """
    dataset = Dataset(dataset_path)
    check_name(dataset, name, replace)
    check(dataset)
    namings: dict[str, Naming] = {}
    if edge_list.query_edges:
        queries, held_out = (
            NodeIndex.from_table(dataset, "queries/train"),
            HeldOut.from_dataset(dataset),
        )
        namings["query"] = partial(_name_queries, queries=queries, held_out=held_out)
    if edge_list.ad_edges:
        namings["ad"] = partial(_name_ads, ads=NodeIndex.from_table(dataset, "ads"))
    texts, edges, counts = read_edge_list(edge_list, name, namings)
    return add_anchor_set(dataset_path, name, texts, edges, made_by(edge_list), replace) | counts


def made_by(edge_list: EdgeList) -> dict[str, object]:
    """Say how the anchor set was made, for ``dataset.json``."""
    return {"made_by": "edges", "settings": asdict(edge_list)}


def read_edge_list(
    edge_list: EdgeList, name: str, namings: Mapping[str, Naming]
) -> tuple[pa.Array, dict[str, Edges], dict[str, int]]:
    """Read a user's edges into memory, about 200 bytes an edge.

    An edge that stands there several times becomes one that has their weights' sum.

    Args:
        edge_list: where the edges are.
        name: of the anchor set, for messages.
        namings: find the nodes of sides ``query`` and ``ad``.

    Returns:
        Texts of the anchors, edges by side, and how many edges were left out or joined.

    Raises:
        DatasetError: names every file and row that is wrong, or no edge is left.
    """
    if not namings:
        raise DatasetError("give edges: --query-edges, --ad-edges or both")
    reader = _Reader(edge_list)
    if edge_list.anchors:
        reader.read_anchors()
    named = {side: reader.read_edges(side, naming) for side, naming in namings.items()}
    raise_errors(f"the edge list of anchor set {name!r}", reader.findings)
    hashes, first = np.unique(np.concatenate(reader.hashes), return_index=True)
    edges = {side: _joined(found, hashes) for side, found in named.items()}
    counts = dict(reader.left_out)
    if not any(map(len, edges.values())):
        found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        raise DatasetError(f"the edge list of anchor set {name!r} leaves no edges: {found}")
    for side, joined in edges.items():
        counts[f"repeated {side} edges joined"] = len(named[side].nodes) - len(joined)
    return pa.concat_arrays(reader.texts).take(pa.array(first)), edges, counts


def _name_queries(cells: pa.StringArray, queries: NodeIndex, held_out: HeldOut) -> Named:
    """Find the train queries that cells name; an id goes before a text, in all splits."""
    cells = pc.utf8_trim_whitespace(cells)
    is_held_out = held_out.has_ids(cells)
    positions, nodes = queries.named(cells)
    in_train = ~is_held_out[positions]
    positions, nodes = positions[in_train], nodes[in_train]
    unnamed = np.ones(len(cells), dtype=bool)
    unnamed[positions] = False
    others = np.flatnonzero(unnamed)
    is_held_out[others] |= held_out.has_texts(cells.take(pa.array(others)))
    return Named(positions, nodes, {"validation and test queries": is_held_out})


def _name_ads(cells: pa.StringArray, ads: NodeIndex) -> Named:
    return Named(*ads.named(pc.utf8_trim_whitespace(cells)), left_out={})


@dataclass(frozen=True)
class _NamedEdges:
    """Edges whose anchors are the hashes of their names; all fields (edges,)."""

    nodes: Int64s
    anchors: UInt64s
    weights: Float64s


def _joined(named: _NamedEdges, hashes: UInt64s) -> Edges:
    """Number the anchors by their place in ``hashes`` (anchors,), and add up repeated edges."""
    pairs = named.nodes * len(hashes) + np.searchsorted(hashes, named.anchors)
    distinct, edge = np.unique(pairs, return_inverse=True)
    weights = np.bincount(edge, named.weights, minlength=len(distinct))
    return Edges(distinct // max(len(hashes), 1), distinct % max(len(hashes), 1), weights)


@dataclass
class _Reader:
    """Reads edges and anchors, and gathers what is wrong with them.

    Attributes:
        edge_list: the tables and their columns.
        findings: what is wrong.
        left_out: how many rows were left out, by reason.
        hashes: of the names of the anchors, a list of arrays.
        texts: the anchors' texts beside ``hashes``.
        listed: the hashes in the table of anchors, ascending; None without one.
    """

    edge_list: EdgeList
    findings: list[Finding] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    hashes: list[UInt64s] = field(default_factory=list)
    texts: list[pa.Array] = field(default_factory=list)
    listed: UInt64s | None = None

    def read_anchors(self) -> None:
        """Read the table of anchors."""
        columns = self.edge_list.tables["anchors"][1]
        blocks = []
        for block in self._blocks("anchors"):
            (ids, no_id), (texts, no_text) = (self._filled(block, column) for column in columns)
            good = ~(no_id | no_text)
            kept = pa.array(good)
            self.hashes.append(hash_strings(pc.utf8_trim_whitespace(ids.filter(kept))))
            self.texts.append(pc.utf8_trim_whitespace(texts.filter(kept)))
            blocks.append(Block(block.piece, block.rows.filter(kept), block.row_numbers[good]))
        self.listed, first = np.unique(np.concatenate(self.hashes), return_index=True)
        repeated = np.ones(sum(map(len, self.hashes)), dtype=bool)
        repeated[first] = False
        start = 0
        for block in blocks:
            stop = start + block.rows.num_rows
            self._report(block, columns[0], repeated[start:stop], "the anchor is there twice")
            start = stop

    def read_edges(self, side: str, naming: Naming) -> _NamedEdges:
        """Read the edges of one side."""
        parts = [self._edges_of(block, side, naming) for block in self._blocks(side)]
        return _NamedEdges(
            np.concatenate([part.nodes for part in parts]),
            np.concatenate([part.anchors for part in parts]),
            np.concatenate([part.weights for part in parts]),
        )

    def _blocks(self, kind: str) -> Iterator[Block]:
        source, columns = self.edge_list.tables[kind]
        any_rows = False
        for piece in find_pieces(source, columns):
            for block in read_piece(piece):
                self._found(block.findings)
                any_rows = True
                yield block
        if not any_rows:
            raise DatasetError(f"{source} holds no rows")

    def _edges_of(self, block: Block, side: str, naming: Naming) -> _NamedEdges:
        column = self.edge_list.tables[side][1][0]
        cells, no_node = self._filled(block, column)
        named = naming(cells)
        unknown = ~no_node
        unknown[named.positions] = False
        for what, which in named.left_out.items():
            self.left_out[f"{side} edges of {what}"] += int(which.sum())
            unknown &= ~which
        self._report(block, column, unknown, f"there is no such {side}")
        anchors, no_anchor = self._anchors_of(block)
        weights, no_weight = self._weights(block)
        kept = ~(no_node | no_anchor | no_weight)[named.positions]
        positions = named.positions[kept]
        return _NamedEdges(named.nodes[kept], anchors[positions], weights[positions])

    def _anchors_of(self, block: Block) -> tuple[UInt64s, Booleans]:
        """Return the hashes of the anchors' names (rows,), and which name none."""
        cells, no_anchor = self._filled(block, self.edge_list.anchor_column)
        names = pc.utf8_trim_whitespace(cells).dictionary_encode()
        distinct = hash_strings(names.dictionary)
        hashes = distinct[names.indices.to_numpy()]
        if self.listed is None:
            self.hashes.append(distinct)
            self.texts.append(names.dictionary)
            return hashes, no_anchor
        unknown = ~contains(self.listed, hashes) & ~no_anchor
        self._report(block, self.edge_list.anchor_column, unknown, "there is no such anchor")
        return hashes, no_anchor | unknown

    def _weights(self, block: Block) -> tuple[Float64s, Booleans]:
        """Return the weights (rows,), and which are none."""
        column = self.edge_list.weight_column
        if column is None:
            return np.ones(block.rows.num_rows), np.zeros(block.rows.num_rows, dtype=bool)
        weights, bad = block.cells(column, as_numbers)
        bad |= weights <= 0
        self._report(block, column, bad, "a weight must be a number above 0")
        return weights, bad

    def _filled(self, block: Block, column: str) -> tuple[pa.StringArray, Booleans]:
        """Return the cells (rows,), and which are empty, which they should not be."""
        cells, empty = block.cells(column, as_strings)
        self._report(block, column, empty, "the cell is empty")
        return cells, empty

    def _report(self, block: Block, column: str, bad: Booleans, message: str) -> None:
        if not bad.any():
            return
        if self.edge_list.skip_bad_rows:
            self.left_out[f"bad rows, {message}"] += int(bad.sum())
        else:
            self.findings.append(block.finding(column, bad, message, ADVICE))

    def _found(self, findings: list[Finding]) -> None:
        """Take what a block's reading found: lines that cannot be read, damaged encoding."""
        if self.edge_list.skip_bad_rows:
            self.left_out["unreadable lines"] += sum(f.severity == "error" for f in findings)
        else:
            self.findings += findings
