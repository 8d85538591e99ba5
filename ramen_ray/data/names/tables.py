"""Read a user's list of names."""

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, UInt64s
from ramen_ray.data.names.matching import NameList, hash_phrases
from ramen_ray.data.prepared.hashing import hash_strings, mix
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.texts import fold
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import UserTable

COLUMNS = ["kind", "name"]
ALIAS_COLUMN = "same_as"
ADVICE = "correct these rows"


def read_names(source: str) -> NameList:
    """Read a list of names: columns ``kind``, ``name`` and optionally ``same_as``.

    ``same_as`` is another name of the same entity and kind: ``place,nyc,new york``. The list is
    CSV, TSV or parquet.

    Raises:
        DatasetError: the list is missing or empty, lacks a column, or has rows that are wrong.
    """
    first = find_files(source, COLUMNS)[0]
    if first.format == "jsonl":
        raise DatasetError(f"{source}: a list of names must be CSV, TSV or parquet")
    columns = {"kind": Column("kind"), "name": Column("name", optional=True)}
    if ALIAS_COLUMN in first.header:
        columns[ALIAS_COLUMN] = Column(ALIAS_COLUMN, optional=True)
    table = UserTable(source, columns, skip_bad_rows=False, advice=ADVICE)
    rows = table.read()
    kinds, names = fold(rows["kind"].combine_chunks()), rows["name"].combine_chunks()
    of_kind, phrases = hash_strings(kinds), hash_phrases(names.fill_null(""))[0]
    entities = own = mix(phrases ^ of_kind)
    if ALIAS_COLUMN in columns:
        aliases = rows[ALIAS_COLUMN].combine_chunks()
        named = mix(hash_phrases(aliases.fill_null(""))[0] ^ of_kind)
        entities = np.where(aliases.is_null(), own, named)
    is_known = np.isin(entities, own[entities == own])
    for role, bad, message in (
        ("name", phrases == 0, "names need a letter or a digit"),
        (ALIAS_COLUMN, ~is_known, "are not a name of the kind, or have a same_as themselves"),
        ("name", is_known & _have_several(own, entities), "same names have another same_as"),
    ):
        table.report_rows(role, message, ADVICE, rows.filter(pa.array(bad)))
    table.check()
    if not len(rows):
        raise DatasetError(f"{source} holds no names")
    return NameList.from_names(kinds, names, entities)


def _have_several(keys: UInt64s, values: UInt64s) -> Booleans:
    """Flag the rows (n,) whose key has several values."""
    key_of_pair = np.unique(np.stack([keys, values]), axis=1)[0]
    return np.isin(keys, key_of_pair[1:][key_of_pair[1:] == key_of_pair[:-1]])
