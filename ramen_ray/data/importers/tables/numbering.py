"""Second stage: number queries and ads, and sum the clicks of each pair."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, UInt64s
from ramen_ray.data.findings import Finding
from ramen_ray.data.importers.tables.settings import UserTables
from ramen_ray.data.importers.tables.staging import part_file, read_part, write_findings
from ramen_ray.data.prepared.hashing import find, hash_strings
from ramen_ray.data.sources import Piece, first_byte, read_cell
from ramen_ray.data.store.texts import normalized

SUMMED = pa.schema(
    [
        ("query", pa.int64()),
        ("ad", pa.int64()),
        ("period", pa.int8()),
        ("weight", pa.float32()),
    ]
)


@dataclass(frozen=True)
class Numbering:
    """Consecutive numbers of queries or ads, in the order of their first appearance.

    Attributes:
        id_hashes: (ids,) uint64, ascending.
        id_numbers: (ids,) int64, each id's number.
        row_numbers: (staged rows,) int64, each row's number; -1 if an earlier row has this number.
        part_starts: (parts + 1,) int64, the first staged row of each part.
        part_numbers: (parts,) int64, the lowest number that each part may hold.
        folded_hashes: (numbers,) uint64, equal for texts that differ in case or white space only.
    """

    id_hashes: UInt64s
    id_numbers: Int64s
    row_numbers: Int64s
    part_starts: Int64s
    part_numbers: Int64s
    folded_hashes: UInt64s

    @classmethod
    def open(cls, folder: Path, kind: str) -> "Numbering":
        """Map the arrays that :func:`number_nodes` wrote for ``kind``."""
        names = cls.__dataclass_fields__
        return cls(*(np.load(_array_file(folder, kind, name), mmap_mode="r") for name in names))

    def of_ids(self, hashes: UInt64s) -> Int64s:
        """Return the numbers (n,) of the ids with ``hashes`` (n,); -1 for unknown ones."""
        numbers = find(hashes, self.id_hashes)
        known = numbers >= 0
        numbers[known] = self.id_numbers[numbers[known]]
        return numbers

    def part_of(self, numbers: Int64s) -> Int64s:
        """Return which part holds each of ``numbers`` (n,)."""
        return np.searchsorted(self.part_numbers, numbers, side="right") - 1

    def part_rows(self, part: int) -> Int64s:
        """Return the numbers of a part's rows."""
        return self.row_numbers[self.part_starts[part] : self.part_starts[part + 1]]


def number_nodes(folder: Path, kind: str, num_parts: int) -> dict[str, int]:
    """Number the staged ``queries`` or ``ads``; queries of equal text get one number.

    Returns:
        ``ids``, ``repeated_rows`` (whose id an earlier row has), ``other_texts`` (those of them
        with a different text) and ``merged`` (queries with the text of an earlier one).
    """
    parts = [read_part(folder, kind, part) for part in range(num_parts)]
    ids, texts, folded = (_column(parts, name) for name in ("id_hash", "text_hash", "folded_hash"))
    id_hashes, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    representative = first
    if kind == "queries":
        _, earliest, same = np.unique(texts[first], return_index=True, return_inverse=True)
        lowest = np.full(len(earliest), len(ids))
        np.minimum.at(lowest, same, first)
        representative = lowest[same]
    is_first = np.zeros(len(ids), dtype=bool)
    is_first[representative] = True
    numbers = np.cumsum(is_first) - 1
    part_starts = np.cumsum([0, *(len(part) for part in parts)])
    arrays = Numbering(
        id_hashes,
        numbers[representative],
        np.where(is_first, numbers, -1),
        part_starts,
        np.concatenate([[0], np.cumsum(is_first)])[part_starts[:-1]],
        folded[is_first],
    )
    for name in Numbering.__dataclass_fields__:
        np.save(_array_file(folder, kind, name), getattr(arrays, name))
    return {
        "ids": len(id_hashes),
        "repeated_rows": len(ids) - len(id_hashes),
        "other_texts": int((texts != texts[first][inverse]).sum()),
        "merged": int((representative != first).sum()),
    }


def name_nodes(
    cells: pa.StringArray, kind: str, folder: Path, tables: UserTables
) -> tuple[Int64s, Int64s]:
    """Return which cells name a known query or ad (``kind``), and the numbers of these."""
    by_text = getattr(tables, kind) is None
    names = normalized(cells) if by_text and tables.normalize_texts else cells
    numbers = Numbering.open(folder, kind).of_ids(hash_strings(names))
    known = np.flatnonzero(numbers >= 0)
    return known, numbers[known]


def number_clicks(folder: Path, part: int, piece: Piece, tables: UserTables) -> pa.Table:
    """Replace the hashes in a staged part of clicks by the numbers of queries and ads.

    Returns:
        columns of :data:`SUMMED` and ``part`` (int64), the part that holds the click's query.
        Clicks of unknown queries or ads are left out and written as findings.
    """
    clicks = read_part(folder, "clicks", part)
    columns, known = {}, np.ones(len(clicks), dtype=bool)
    findings = []
    for kind, role in (("queries", "query"), ("ads", "ad")):
        numbers = Numbering.open(folder, kind).of_ids(clicks[f"{role}_hash"].to_numpy())
        unknown = numbers < 0
        if unknown.any():
            rows = clicks["row"].to_numpy()[unknown]
            findings.append(_unknown(piece, tables, role, rows))
        columns[role] = numbers
        known &= ~unknown
    write_findings(folder, f"unknown-{part:06d}", findings)
    rows = pa.table({**columns, "period": clicks["period"], "weight": clicks["weight"]})
    rows = rows.filter(pa.array(known))
    part_of = Numbering.open(folder, "queries").part_of(rows["query"].to_numpy())
    return rows.append_column("part", pa.array(part_of))


def _unknown(piece: Piece, tables: UserTables, role: str, rows: Int64s) -> Finding:
    listed = tables.queries if role == "query" else tables.ads
    column = tables.click_columns[role]
    example = read_cell(piece, column, int(rows[0]))
    return Finding(
        "error",
        piece.path,
        f"{len(rows)} clicks name {'an ad' if role == 'ad' else 'a query'} that is not in"
        f" {listed}, such as {example!r}",
        "add what is missing, or leave these clicks out with skip_bad_rows",
        row=int(rows[0]),
        column=column,
        start=first_byte(piece),
    )


def sum_clicks(clicks: pa.Table, folder: Path, tables: UserTables) -> pa.Table:
    """Sum the clicks of each (query, ad, period) of one part of queries; write the sums sorted.

    Args:
        clicks: columns of :data:`SUMMED` and ``part``, which is the same in all rows.
        folder: staging folder.
        tables: pairs of query and ad whose weights sum to less than ``min_click_weight`` are left
            out and, if ``drop_own_text``, those of equal text.

    Returns:
        one row with the ``part``, and the numbers of ``clicks`` read, of ``pairs`` of query and ad
        among them, and of pairs left out for their low weight (``light_pairs``) or equal text
        (``own_pairs``).
    """
    names = ("query", "ad", "period")
    query, ad, period = (clicks[name].to_numpy() for name in names)
    order = np.lexsort((period, ad, query))
    query, ad, period = query[order], ad[order], period[order]
    weight = clicks["weight"].to_numpy()[order].astype(np.float64)
    new_pair = _changes(query) | _changes(ad)
    starts = np.flatnonzero(new_pair | _changes(period))
    pair_weight = np.add.reduceat(weight, np.flatnonzero(new_pair))
    is_light = pair_weight < tables.min_click_weight
    is_own = np.zeros(len(pair_weight), dtype=np.bool_)
    if tables.drop_own_text:
        texts = [Numbering.open(folder, kind).folded_hashes for kind in ("queries", "ads")]
        is_own = texts[0][query[new_pair]] == texts[1][ad[new_pair]]
    kept = ~(is_light | is_own)[np.cumsum(new_pair)[starts] - 1]
    chosen = starts[kept]
    sums = np.add.reduceat(weight, starts)[kept].astype(np.float32)
    columns = [query[chosen], ad[chosen], period[chosen], sums]
    part = int(clicks["part"][0].as_py())
    with pa.ipc.new_file(str(part_file(folder, "summed", part)), SUMMED) as writer:
        writer.write_table(pa.table(columns, schema=SUMMED))
    counts = {
        "clicks": len(clicks),
        "pairs": len(pair_weight),
        "light_pairs": int(is_light.sum()),
        "own_pairs": int((is_own & ~is_light).sum()),
    }
    return pa.table({"part": [part], **{name: [count] for name, count in counts.items()}})


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the first of each run of equal values."""
    return np.concatenate([[True], values[1:] != values[:-1]])


def _column(parts: list[pa.Table], name: str) -> UInt64s:
    return np.concatenate([np.empty(0, np.uint64), *(part[name].to_numpy() for part in parts)])


def _array_file(folder: Path, kind: str, name: str) -> Path:
    return folder / f"{kind}-{name}.npy"
