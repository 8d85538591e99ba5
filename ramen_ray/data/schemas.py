"""Arrow schemas of the dataset directory's tables."""

import pyarrow as pa

SPLITS = ("train", "validation", "test")

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


def schema_of(table: str) -> pa.Schema:
    """Return the Arrow schema of a table named as in the dataset directory.

    ``table`` is a path without suffix, such as ``queries/train`` or ``edges/links/ad``.
    """
    parts = table.split("/")
    match parts:
        case ["queries", split] if split in SPLITS:
            return QUERIES
        case ["ads"]:
            return ADS
        case ["anchors", _]:
            return ANCHORS
        case ["edges", _, "query" | "test_query"]:
            return QUERY_EDGES
        case ["edges", _, "ad"]:
            return AD_EDGES
        case ["filters", "validation" | "test"]:
            return FILTERS
    raise KeyError(f"the dataset directory has no table named {table!r}")
