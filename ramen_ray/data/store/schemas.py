"""What a dataset directory has: tables, by their names and Arrow schemas, and ``dataset.json``."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ramen_ray.data.store.made_folder import FileContent, read_json
from ramen_ray.errors import DatasetError
from ramen_ray.naming import VERSIONED, naming_fault

Side = Literal["query", "ad"]
SIDES: tuple[Side, ...] = ("query", "ad")
PLURAL: dict[Side, str] = {"query": "queries", "ad": "ads"}
SPLITS = ("train", "validation", "test")
ZERO_SHOT = "zero_shot"
"""An optional split: test queries with their novel ads only, searched among the novel ads."""
HELD_OUT = (*SPLITS[1:], ZERO_SHOT)
Protocol = Literal["strict", "as-published"]
"""Which edges a graph leaves out: those that join a held-out query to its answer, or none."""
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
        case ["filters", split] if split in HELD_OUT:
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


FORMAT_VERSION = 1
DEEPEST = 4
"""Levels at which files of tables lie: edges/SET/query.parquet, a folder of parts, has the most."""
UNFINISHED = ".unfinished-"
"""With an anchor set's name, or a folder's and a dot: the file that hides its tables until all are
in place."""
CHECKED = "checked"
"""Key: by table, the hash of what was checked as it was written."""


def conform(table: str, rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return the columns that the format defines, in their types."""
    rows = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    schema = pa.schema([*schema_of(table), *optional_fields(table, rows.column_names)])
    return rows.select(schema.names).cast(schema)


def read_metadata(path: Path) -> dict[str, Any]:
    """Read ``dataset.json``; a DatasetError if it is missing, or of another format version."""
    file = path / "dataset.json"
    if not path.is_dir():
        raise DatasetError(f"there is no dataset directory at {path}")
    if not file.is_file():
        raise DatasetError(f"{path} is not a dataset directory: it has no dataset.json")
    try:
        metadata = read_json(file)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file} is not valid JSON: {error}") from error
    version = metadata.get("format_version") if isinstance(metadata, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:  # true and 1.0 equal 1
        raise DatasetError(
            f"{file}: format_version is {version!r}, but this program reads {FORMAT_VERSION}"
        )
    name = metadata.get("name")
    if not isinstance(name, str):
        raise DatasetError(f"{file}: 'name' is missing or not a string")
    if fault := naming_fault(name):
        raise DatasetError(f"{file}: 'name': {fault}; change it there")
    return metadata


def delta_versions(metadata: Mapping[str, Any]) -> Iterator[FileContent]:
    """Yield the versions of Delta tables that ``dataset.json`` names."""
    values: list[Any] = [metadata]
    for value in values:
        if isinstance(value, dict):
            values += [part for _, part in sorted(value.items())]
        elif isinstance(value, str) and (versioned := VERSIONED.match(value)):
            yield "version", 0, versioned[2].encode()


def checked_tables(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return what was checked as it was written: a hash by table."""
    checked = metadata.get(CHECKED)
    return checked if isinstance(checked, dict) else {}


def table_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (table, parquet file), also in linked folders, but nothing hidden or unfinished."""
    unfinished = {file.name.removeprefix(UNFINISHED) for file in folder.glob(f"{UNFINISHED}*")}
    for depth in range(DEEPEST):
        for file in folder.glob("*/" * depth + "*.parquet"):
            part_of = file.parent if file.parent.suffix == ".parquet" else file
            name = part_of.relative_to(folder).with_suffix("")
            group, *below = name.parts
            hides = below[0] if group in ("anchors", "edges") and below else f"{group}."
            is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if file.is_file() and not is_hidden and hides not in unfinished:
                yield str(name), file
