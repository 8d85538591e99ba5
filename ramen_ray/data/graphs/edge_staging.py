"""First stage of an edge list: read a piece, check its rows, write its edges, sorted.

Edges and anchors' names go through files of a staging folder, which tasks write and map. An Arrow
batch of such a file has the rows of one batch of its piece, so memory holds one batch at a time.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Float64s, UInt64s
from ramen_ray.data.findings import Finding, FirstFindings
from ramen_ray.data.graphs.edge_lists import EdgeList, Naming
from ramen_ray.data.leaks import LEAKING_EDGES
from ramen_ray.data.prepared.hashing import find, hash_strings
from ramen_ray.data.sources import Piece, SourceBatch, as_numbers, as_strings, read_piece
from ramen_ray.data.store.texts import fold

ADVICE = "correct these rows, or leave them out with skip_bad_rows"
EDGES = pa.schema([("node", pa.int64()), ("anchor", pa.uint64()), ("weight", pa.float64())])
"""Staged edges, by ascending node; an anchor is the hash of its name."""
NAMES = pa.schema([("hash", pa.uint64()), ("text", pa.string())])
"""Staged anchors, by ascending hash of their names; no texts if there is a table of anchors."""


@dataclass
class Notes:
    """What one task found.

    Attributes:
        num_batches: number of batches read.
        num_rows: number of rows staged: edges, or listed anchors.
        num_names: number of names of the edges' anchors staged.
        num_errors: number of errors.
        findings: what is wrong with the rows; of what other tasks noted, the first findings.
        left_out: number of rows left out, by reason.
    """

    num_batches: int = 0
    num_rows: int = 0
    num_names: int = 0
    num_errors: int = 0
    findings: list[Finding] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def stage_anchors(piece: Piece, number: int, edge_list: EdgeList, folder: Path) -> None:
    """Stage a piece of the table of anchors as part ``number``."""
    checks = _Checks(edge_list)
    with pa.ipc.new_file(str(staged_file(folder, "anchors", number)), NAMES) as part:
        for batch in read_piece(piece):
            _, hashes, texts = checks.anchors(batch)
            order = np.argsort(hashes, kind="stable")
            columns = [hashes[order], texts.take(pa.array(order))]
            part.write_table(pa.table(columns, schema=NAMES))
            checks.notes.num_rows += len(order)
    _write_notes(folder, "anchors", number, checks.notes)


def report_repeated_anchors(
    piece: Piece, number: int, edge_list: EdgeList, folder: Path, repeated: Booleans
) -> None:
    """Report the anchors of part ``number`` whose id is already taken by an earlier row.

    Args:
        piece: the piece that the part was read from.
        number: the part's number.
        edge_list: where the edges are.
        folder: staging folder.
        repeated: (staged rows of the part,) which rows these are.
    """
    checks = _Checks(edge_list)
    stop = 0
    for batch in read_piece(piece):
        rows, hashes, _ = _Checks(edge_list).anchors(batch)
        start, stop = stop, stop + len(hashes)
        marked = np.zeros(len(hashes), dtype=bool)
        marked[np.argsort(hashes, kind="stable")[repeated[start:stop]]] = True
        id_column = edge_list.tables["anchors"][1][0]
        checks.report(rows, id_column, marked, "an earlier row has this anchor")
    _write_notes(folder, "repeated", number, checks.notes)


def stage_edges(
    piece: Piece, side: str, number: int, edge_list: EdgeList, folder: Path, naming: Naming
) -> None:
    """Stage a piece of the edges of one side as part ``number``, and their anchors' names."""
    checks = _Checks(edge_list, _Listed.open(folder) if edge_list.anchors else None)
    with ExitStack() as stack:
        edges, names = (
            stack.enter_context(pa.ipc.new_file(str(staged_file(folder, kind, number)), schema))
            for kind, schema in ((side, EDGES), (f"names-{side}", NAMES))
        )
        for batch in read_piece(piece):
            of_batch, names_of_batch = checks.edges(batch, side, naming)
            edges.write_table(of_batch)
            names.write_table(names_of_batch)
            checks.notes.num_rows += len(of_batch)
            checks.notes.num_names += len(names_of_batch)
    _write_notes(folder, side, number, checks.notes)


LISTED = "listed.npy"
"""The hashes of the ids in the table of anchors, ascending."""
LISTED_TEXTS = "listed-texts.npy"
"""The hashes of these anchors' folded texts."""


class _Listed(NamedTuple):
    """The anchors of a table: hashes of their ids, ascending, and of their folded texts."""

    ids: UInt64s
    texts: UInt64s

    @classmethod
    def open(cls, folder: Path) -> "_Listed":
        return cls(*(np.load(folder / name, mmap_mode="r") for name in (LISTED, LISTED_TEXTS)))


@dataclass
class _Checks:
    """Checks batches and collects what is wrong with them.

    Attributes:
        edge_list: the tables and their columns.
        listed: the table of anchors; None without one.
        notes: what it has found so far.
    """

    edge_list: EdgeList
    listed: _Listed | None = None
    notes: Notes = field(default_factory=Notes)

    def anchors(self, batch: SourceBatch) -> tuple[SourceBatch, UInt64s, pa.StringArray]:
        """Return the rows with an id and a text, the hashes (rows,) of the ids, and the texts."""
        self._begin(batch)
        names = self.edge_list.tables["anchors"][1]
        (ids, no_id), (texts, no_text) = (self._filled(batch, name) for name in names)
        good = ~(no_id | no_text)
        kept = pa.array(good)
        ids, texts = (pc.utf8_trim_whitespace(cells.filter(kept)) for cells in (ids, texts))
        rows = SourceBatch(batch.piece, batch.rows.filter(kept), batch.row_numbers[good])
        return rows, hash_strings(ids), texts

    def edges(self, batch: SourceBatch, side: str, naming: Naming) -> tuple[pa.Table, pa.Table]:
        """Return the edges of a batch, and the names of their anchors."""
        self._begin(batch)
        column = self.edge_list.tables[side][1][0]
        cells, no_node = self._filled(batch, column)
        named = naming(cells)
        unknown = ~no_node
        unknown[named.positions] = False
        for what, which in named.left_out.items():
            self.notes.left_out[f"{side} edges of {what}"] += int(which.sum())
            unknown &= ~which
        self.report(batch, column, unknown, f"there is no such {side}")
        anchors, no_anchor, texts = self._anchors_of(batch)
        weights, no_weight = self._weights(batch)
        kept = ~(no_node | no_anchor | no_weight)[named.positions]
        if named.is_leak:
            leaks = named.is_leak(self._anchor_texts(anchors, texts)[named.positions])
            self.notes.left_out[f"{side} {LEAKING_EDGES}"] += int((kept & leaks).sum())
            kept &= ~leaks
        nodes, positions = named.nodes[kept], named.positions[kept]
        order = np.argsort(nodes, kind="stable")
        columns = [nodes[order], anchors[positions][order], weights[positions][order]]
        hashes, row = np.unique(anchors[positions], return_index=True)
        names = [hashes, texts.take(pa.array(positions[row]))]
        return pa.table(columns, schema=EDGES), pa.table(names, schema=NAMES)

    def _anchors_of(self, batch: SourceBatch) -> tuple[UInt64s, Booleans, pa.Array]:
        """Return the hashes of the anchors' names (rows,), which rows are bad, and the names."""
        column = self.edge_list.anchor_column
        cells, no_anchor = self._filled(batch, column)
        names = pc.utf8_trim_whitespace(cells)
        encoded = names.dictionary_encode()
        hashes = hash_strings(encoded.dictionary)[encoded.indices.to_numpy()]
        if self.listed is None:
            return hashes, no_anchor, names
        unknown = (find(hashes, self.listed.ids) < 0) & ~no_anchor
        self.report(batch, column, unknown, "there is no such anchor")
        return hashes, no_anchor | unknown, pa.nulls(len(hashes), pa.string())

    def _anchor_texts(self, anchors: UInt64s, names: pa.Array) -> UInt64s:
        """Return the hashes (rows,) of the anchors' folded texts; 0 where there is no anchor."""
        if self.listed is None:
            encoded = names.dictionary_encode()
            return hash_strings(fold(encoded.dictionary))[encoded.indices.to_numpy()]
        places = find(anchors, self.listed.ids)
        return np.where(places >= 0, self.listed.texts[places], np.uint64(0))

    def _weights(self, batch: SourceBatch) -> tuple[Float64s, Booleans]:
        """Return the weights (rows,), and which are bad."""
        column = self.edge_list.weight_column
        if column is None:
            return np.ones(batch.rows.num_rows), np.zeros(batch.rows.num_rows, dtype=bool)
        weights, bad = batch.cells(column, as_numbers)
        bad |= weights <= 0
        self.report(batch, column, bad, "a weight must be a number above 0")
        return weights, bad

    def _filled(self, batch: SourceBatch, column: str) -> tuple[pa.StringArray, Booleans]:
        """Return the cells (rows,), and which are empty; reports the empty ones."""
        cells, empty = batch.cells(column, as_strings)
        self.report(batch, column, empty, "the cell is empty")
        return cells, empty

    def report(self, batch: SourceBatch, column: str, bad: Booleans, message: str) -> None:
        """Note the rows that ``bad`` (rows,) marks, as left out or as an error."""
        if not bad.any():
            return
        if self.edge_list.skip_bad_rows:
            self.notes.left_out[f"bad rows, {message}"] += int(bad.sum())
        else:
            self.notes.findings.append(batch.finding(column, bad, message, ADVICE))

    def _begin(self, batch: SourceBatch) -> None:
        """Note the findings of reading: unreadable lines and damaged encoding."""
        self.notes.num_batches += 1
        if self.edge_list.skip_bad_rows:
            errors = sum(finding.severity == "error" for finding in batch.findings)
            self.notes.left_out["unreadable lines"] += errors
        else:
            self.notes.findings += batch.findings


def staged_file(folder: Path, kind: str, number: int) -> Path:
    """Return the file of a staged part."""
    return folder / f"{kind}-{number:06d}.arrow"


def staged_batches(folder: Path, kind: str) -> Iterator[pa.RecordBatch]:
    """Map all staged batches of a kind, in the order of the pieces."""
    for file in sorted(folder.glob(f"{kind}-??????.arrow")):
        reader = pa.ipc.open_file(pa.memory_map(str(file)))
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


def read_notes(folder: Path, kind: str) -> Notes:
    """Sum the notes of all parts of a kind, in their order; keeps the first findings."""
    total = Notes()
    for file in sorted(folder.glob(f"{kind}-??????.json")):
        content: dict[str, Any] = json.loads(file.read_text())
        found = [Finding(**finding) for finding in content["findings"]]
        total.findings = FirstFindings.of([*total.findings, *found]).shown
        total.left_out.update(content["left_out"])
        for count in ("num_batches", "num_rows", "num_names", "num_errors"):
            setattr(total, count, getattr(total, count) + content[count])
    return total


def _write_notes(folder: Path, kind: str, number: int, notes: Notes) -> None:
    first = FirstFindings.of(notes.findings)
    shown = [asdict(finding) for finding in first.shown]
    content = {**vars(notes), "num_errors": first.num_errors, "findings": shown}
    (folder / f"{kind}-{number:06d}.json").write_text(json.dumps(content))
