"""Read a user's list of names."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, UInt64s
from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.names.matching import NameList, hash_phrases
from ramen_ray.data.prepared.hashing import hash_strings, mix
from ramen_ray.data.sources import SourceBatch, as_strings, find_pieces, located, read_piece
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.texts import fold

COLUMNS = ["kind", "name"]
ALIAS_COLUMN = "same_as"
ADVICE = "correct these rows"


def read_names(source: str) -> NameList:
    """Read a list of names: columns ``kind``, ``name`` and optionally ``same_as``.

    ``same_as`` is another name of the same entity and kind: ``place,nyc,new york``.

    Args:
        source: CSV, TSV or parquet.

    Raises:
        DatasetError: the list is missing or empty, lacks a column, or has rows that are wrong.
    """
    header = find_pieces(source, COLUMNS)[0].header
    if not header:
        raise DatasetError(f"{source}: a list of names must be CSV, TSV or parquet")
    columns = [*COLUMNS, ALIAS_COLUMN] if ALIAS_COLUMN in header else COLUMNS
    pieces = find_pieces(source, columns)
    batches = [batch for piece in pieces for batch in read_piece(piece)]
    if not batches:
        raise DatasetError(f"{source} holds no names")
    rows = _Rows(batches, [finding for batch in batches for finding in batch.findings])
    (kinds, no_kind), (names, _) = rows.cells("kind"), rows.cells("name")
    kinds = fold(kinds)
    of_kind, phrases = hash_strings(kinds), hash_phrases(names)[0]
    entities = own = mix(phrases ^ of_kind)
    if ALIAS_COLUMN in columns:
        aliases, no_alias = rows.cells(ALIAS_COLUMN)
        entities = np.where(no_alias, own, mix(hash_phrases(aliases)[0] ^ of_kind))
    is_known = np.isin(entities, own[entities == own])
    rows.report("kind", no_kind, "the cell is empty")
    rows.report("name", phrases == 0, "a name needs a letter or a digit")
    rows.report(ALIAS_COLUMN, ~is_known, "this is not a name of the kind, or has a same_as itself")
    rows.report(
        "name",
        is_known & _have_several(own, entities),
        "the same name has another same_as",
    )
    raise_errors(f"the list of names {source}", located(rows.findings, pieces))
    return NameList.from_names(kinds, names, entities)


@dataclass
class _Rows:
    """All rows of the source, and what is wrong with them."""

    batches: list[SourceBatch]
    findings: list[Finding]

    def cells(self, column: str) -> tuple[pa.StringArray, Booleans]:
        """Return a column (rows,), and which of its cells are empty."""
        strings, empty = zip(
            *(batch.cells(column, as_strings) for batch in self.batches), strict=True
        )
        return pa.concat_arrays(strings), np.concatenate(empty)

    def report(self, column: str, bad: Booleans, message: str) -> None:
        """Report the rows that ``bad`` (rows,) flags."""
        start = 0
        for batch in self.batches:
            marked = bad[start : start + batch.rows.num_rows]
            start += batch.rows.num_rows
            if marked.any():
                self.findings.append(batch.finding(column, marked, message, ADVICE))


def _have_several(keys: UInt64s, values: UInt64s) -> Booleans:
    """Flag the rows (n,) whose key has several values."""
    key_of_pair = np.unique(np.stack([keys, values]), axis=1)[0]
    return np.isin(keys, key_of_pair[1:][key_of_pair[1:] == key_of_pair[:-1]])
