"""The tables of a dataset directory: their names and Arrow schemas."""

from collections.abc import Collection
from contextlib import suppress
from typing import Literal

import pyarrow as pa

Side = Literal["query", "ad"]
SIDES: tuple[Side, ...] = ("query", "ad")
PLURAL: dict[Side, str] = {"query": "queries", "ad": "ads"}
SPLITS = ("train", "validation", "test")
ZERO_SHOT = "zero_shot"
"""An optional split: test queries with their novel ads only, searched among the novel ads."""
PUBLISHED = "_published"
"""Suffix of anchor sets whose edges may join held-out queries to their answers."""
TRAIN = "queries/train"
NODE_TABLES = {"query": TRAIN, "ad": "ads"}
"""By side, the table of the nodes that have edges in training."""
HELD_OUT_SIDES = {"validation": "validation_query", "test": "test_query"}
"""By split, the name of an anchor set's edges of its queries; only oracles are given these."""

QUERIES = pa.schema(
    [("query_id", pa.int64()), ("text", pa.string()), ("ad_ids", pa.list_(pa.int64()))]
)
ADS = pa.schema([("ad_id", pa.int64()), ("text", pa.string())])
ANCHORS = pa.schema([("anchor_id", pa.int64()), ("text", pa.string())])
QUERY_EDGES = pa.schema(
    [("query_id", pa.int64()), ("anchor_id", pa.int64()), ("weight", pa.float32())]
)
AD_EDGES = pa.schema([("ad_id", pa.int64()), ("anchor_id", pa.int64()), ("weight", pa.float32())])
FILTERS = pa.schema([("query_id", pa.int64()), ("ad_id", pa.int64())])
JUDGEMENTS = pa.schema(
    [
        ("query_id", pa.int64()),
        ("ad_id", pa.int64()),
        ("source", pa.string()),
        ("grade", pa.float32()),
    ]
)
"""How well ads answer queries, from 0 to 1; a pair has one grade of each source."""
JUDGED_FOLDER = "judged"
JUDGED = tuple(f"{JUDGED_FOLDER}/{split}" for split in SPLITS)
NOVEL_ADS = pa.schema([("ad_id", pa.int64())])
ALIASES = pa.schema([("name", pa.string()), ("of", pa.string())])
"""Names of queries or ads that have no row, for the user's later tables: ``of`` is the source_id of
the one that it was merged with, or null if it was left out."""

SOURCE_ID = pa.field("source_id", pa.string())  # the user's own
WEIGHTS = pa.field("weights", pa.list_(pa.float32()))  # of clicks, or counts: as many as ad_ids
FILTER = "filter_"
"""Prefix of the columns of ads, strings, that answers can be filtered by: filter_market."""
MAY_BE_NULL = ("source_id", "of")
_SINGLE = {
    "ads": ADS,
    "novel_ads": NOVEL_ADS,
    "aliases/query": ALIASES,
    "aliases/ad": ALIASES,
    **dict.fromkeys(JUDGED, JUDGEMENTS),
}


def schema_of(table: str) -> pa.Schema:
    """Return the columns that a table such as ``edges/links/ad`` must have; KeyError if unknown."""
    match table.split("/"):
        case ["queries", split] if split in (*SPLITS, ZERO_SHOT):
            return QUERIES
        case ["anchors", _]:
            return ANCHORS
        case ["edges", _, side] if side == "query" or side in HELD_OUT_SIDES.values():
            return QUERY_EDGES
        case ["edges", _, "ad"]:
            return AD_EDGES
        case ["filters", split] if split in (*SPLITS[1:], ZERO_SHOT):
            return FILTERS
        case _ if table in _SINGLE:
            return _SINGLE[table]
    raise KeyError(f"the dataset directory has no table named {table!r}")


def ids_in(table: str) -> dict[str, str]:
    """Return, by column of ids that a table must have, the table whose rows they number."""
    numbered = {"ad_id": "ads", "ad_ids": "ads", "query_id": TRAIN}
    match table.split("/"):
        case ["queries" | "filters" | "judged", split]:
            numbered["query_id"] = f"queries/{split}"
        case ["anchors" | "edges", name, *side]:
            numbered["anchor_id"] = f"anchors/{name}"
            for split, held_out in HELD_OUT_SIDES.items():
                if side == [held_out]:
                    numbered["query_id"] = f"queries/{split}"
    return {name: numbered[name] for name in schema_of(table).names if name in numbered}


def is_known(table: str) -> bool:
    """Return whether the format has such a table."""
    with suppress(KeyError):
        return bool(schema_of(table))
    return False


def optional_fields(table: str, present: Collection[str]) -> list[pa.Field]:
    """Return which columns of ``present`` a table may have besides those of `schema_of`."""
    may_have = {"queries": [SOURCE_ID, WEIGHTS], "ads": [SOURCE_ID], "anchors": [SOURCE_ID]}
    fields = [field for field in may_have.get(table.split("/")[0], []) if field.name in present]
    if table == "ads":
        fields += [pa.field(name, pa.string()) for name in present if name.startswith(FILTER)]
    return fields
