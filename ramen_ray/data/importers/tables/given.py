"""Given splits of queries, and given pairs to drop from predictions."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.findings import Finding
from ramen_ray.data.importers.tables.numbering import Numbering, name_nodes
from ramen_ray.data.importers.tables.settings import UserTables
from ramen_ray.data.importers.tables.staging import (
    bad_cells,
    new_part,
    read_parts,
    write_findings,
)
from ramen_ray.data.prepared.hashing import uniforms
from ramen_ray.data.sources import Piece, SourceBatch, as_strings, read_piece
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import SPLITS

GIVEN_SPLITS = pa.schema([("query", pa.int64()), ("split", pa.int8())])
FILTERS = pa.schema([("query", pa.int64()), ("ad", pa.int64())])
_TRAIN, _VALIDATION = range(2)
_KEY = 1
_MAX_SHOWN = 3


def stage_splits(piece: Piece, number: int, tables: UserTables, folder: Path) -> None:
    """Stage a piece of the table of given splits as part ``number``; queries by their numbers."""
    assert tables.given_splits
    _, names = tables.given_splits
    found = _Names(tables, folder)
    with new_part(folder, "splits", number, GIVEN_SPLITS) as part:
        for batch in read_piece(piece):
            found.findings.extend(batch.findings)
            queries = found.numbers(batch, "queries", names["query"])
            cells, empty = batch.cells(names["split"], as_strings)
            place = pc.index_in(pc.utf8_trim_whitespace(cells), pa.array(SPLITS))
            places = pc.fill_null(place, -1).to_numpy(zero_copy_only=False)
            bad = empty | (places < 0)
            found.findings.extend(bad_cells(batch, names, {"split": bad}))
            known = (queries >= 0) & ~bad
            rows = pa.table([queries[known], places[known]], GIVEN_SPLITS.names)
            part.write_table(rows.cast(GIVEN_SPLITS))
    write_findings(folder, f"splits-{number:06d}", found.findings)


def stage_filters(piece: Piece, number: int, tables: UserTables, folder: Path) -> None:
    """Stage a piece of the table of filter pairs as part ``number``; both ends by numbers."""
    names = tables.filter_columns
    found = _Names(tables, folder)
    with new_part(folder, "filters", number, FILTERS) as part:
        for batch in read_piece(piece):
            found.findings.extend(batch.findings)
            queries = found.numbers(batch, "queries", names["query"])
            ads = found.numbers(batch, "ads", names["ad"])
            known = (queries >= 0) & (ads >= 0)
            part.write_table(pa.table([queries[known], ads[known]], schema=FILTERS))
    write_findings(folder, f"filters-{number:06d}", found.findings)


def given_splits(
    folder: Path, tables: UserTables, folded: UInt64s, clicked: Booleans
) -> NDArray[np.int8]:
    """Return the split (queries,) of each query as the staged tables give it.

    Queries whose texts differ only in case and white space share a split; those without one are in
    the train split. If no validation query is given, some clicked train queries are held out, by
    their hashes.

    Args:
        folder: staging folder.
        tables: with ``skip_bad_rows``, -1 marks the queries that are given two splits.
        folded: (queries,) hashes of their folded texts.
        clicked: (queries,) whether a query of that text has a click.

    Raises:
        DatasetError: queries are given two splits.
    """
    _, group = np.unique(folded, return_inverse=True)
    num_groups = int(group.max(initial=-1)) + 1
    lowest = np.full(num_groups, len(SPLITS), dtype=np.int8)
    highest = np.full(num_groups, -1, dtype=np.int8)
    for rows in read_parts(folder, "splits"):
        of_row = group[rows["query"].to_numpy()]
        np.minimum.at(lowest, of_row, rows["split"].to_numpy())
        np.maximum.at(highest, of_row, rows["split"].to_numpy())
    in_two = (highest > lowest)[group]
    if in_two.any() and not tables.skip_bad_rows:
        raise DatasetError(_two_splits(folder, in_two))
    splits = np.where(highest < 0, _TRAIN, highest)[group]
    if not (splits == _VALIDATION).any():
        drawn = uniforms((tables.splits.seed, _KEY), folded)
        is_held_out = clicked & (drawn < tables.splits.validation_fraction)
        splits[is_held_out & (splits == _TRAIN)] = _VALIDATION
    splits[in_two] = -1
    return splits.astype(np.int8)


@dataclass
class _Names:
    """Numbers the queries and ads that the cells of a batch name, and gathers what is wrong.

    Attributes:
        tables: the user's.
        folder: staging folder.
        findings: what is wrong, as found so far.
    """

    tables: UserTables
    folder: Path
    findings: list[Finding] = field(default_factory=list)

    def numbers(self, batch: SourceBatch, kind: str, column: str) -> Int64s:
        """Return the number (rows,) of the query or ad in ``column`` of each row; else -1."""
        cells, empty = batch.cells(column, as_strings)
        self.findings += bad_cells(batch, {kind: column}, {kind: empty})
        places, found = name_nodes(cells, kind, self.folder, self.tables)
        numbers = np.full(len(cells), -1)
        numbers[places] = found
        numbers[empty] = -1
        unknown = (numbers < 0) & ~empty
        if unknown.any():
            what = "an ad" if kind == "ads" else "a query"
            listed = getattr(self.tables, kind) or self.tables.clicks
            message = f"{int(unknown.sum())} rows name {what} that is not in {listed}"
            advice = "add what is missing, or leave these rows out with skip_bad_rows"
            self.findings.append(batch.finding(column, unknown, message, advice))
        return numbers


def _two_splits(folder: Path, in_two: Booleans) -> str:
    """Name some of the queries (queries,) that are given two splits."""
    texts: list[str] = []
    numbers = Numbering.open(folder, "queries").row_numbers
    start = 0
    for part in read_parts(folder, "queries"):
        of_part = numbers[start : start + len(part)]
        start += len(part)
        chosen = (of_part >= 0) & in_two[of_part]
        texts += part["text"].filter(pa.array(chosen))[:_MAX_SHOWN].to_pylist()
    rest = int(in_two.sum()) - len(texts[:_MAX_SHOWN])
    shown = ", ".join(map(repr, texts[:_MAX_SHOWN])) + (f" and {rest} more" if rest else "")
    return (
        f"{int(in_two.sum())} queries are given two splits, up to case and white space: {shown};"
        " give each one, or leave these queries out with skip_bad_rows"
    )
