"""Checks of tables from their parquet footers alone: present, of the right types, not empty."""

from collections.abc import Iterator

import pyarrow as pa

from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.store.schemas import (
    HELD_OUT,
    JUDGED,
    SIDES,
    SPLITS,
    ZERO_SHOT,
    is_known,
    optional_fields,
    schema_of,
)
from ramen_ray.naming import naming_fault

_NEEDED_BY = {
    f"queries/{ZERO_SHOT}": "novel_ads",
    "novel_ads": f"queries/{ZERO_SHOT}",
    f"filters/{ZERO_SHOT}": f"queries/{ZERO_SHOT}",
}
_EMPTY_ADVICE = {
    "edges": "leave the table out or give it edges",
    "judged": "leave the table out or give it judgements",
    "queries": "every split needs queries; hold out a part of the train split",
}


def read_tables(dataset: Dataset) -> list[str]:
    """Name the tables that training and evaluation read: those needed, and others that exist."""
    sets = dataset.anchor_sets
    splits = [f"queries/{split}" for split in SPLITS]
    optional = [
        *(f"edges/{name}/{side}" for name in sets for side in SIDES),
        *(f"filters/{split}" for split in HELD_OUT),
        f"queries/{ZERO_SHOT}",
        "novel_ads",
        *JUDGED,
    ]
    needed = [*splits, "ads", *(f"anchors/{name}" for name in sets)]
    return needed + [table for table in optional if dataset.has(table)]


def check_structure(dataset: Dataset) -> dict[str, int]:
    """Return tables' row counts by the footers; a DatasetError says what is wrong with columns."""
    findings, num_rows = inspect_structure(dataset)
    raise_errors(dataset, findings)
    return num_rows


def inspect_structure(dataset: Dataset) -> tuple[list[Finding], dict[str, int]]:
    """Read the footers of all tables, and list what is wrong with tables, columns and counts.

    Also returns the row counts of the tables with the right columns.
    """
    findings = [*_set_findings(dataset), *_name_findings(dataset)]
    num_rows: dict[str, int] = {}
    stated = dataset.metadata.get("num_rows", {})
    if not (isinstance(stated, dict) and all(type(count) is int for count in stated.values())):
        message = "num_rows is not an object that gives each table's row count"
        findings.append(_error("dataset.json", message, "correct it, or leave num_rows out"))
        stated = {}
    wanted = dict.fromkeys([*read_tables(dataset), *dataset.tables])
    for table in filter(is_known, wanted):
        file = f"{table}.parquet"
        if not dataset.has(table):
            findings.append(_error(file, f"there is no table {table!r}", "training needs it"))
            continue
        damaged, count = _read_footers(dataset, table)
        findings += damaged
        if damaged:
            continue
        num_rows[table] = count
        if not count and not table.startswith(("filters/", "aliases/")):
            advice = _EMPTY_ADVICE.get(table.split("/")[0], "it needs rows")
            findings.append(_error(file, f"table {table!r} is empty", advice))
        if stated.get(table, count) != count:
            message = f"it has {count} rows, but dataset.json says {stated[table]}"
            advice = "a file was changed, truncated or lost: restore it, or correct dataset.json"
            findings.append(_error(file, message, advice))
    for table in sorted(stated.keys() - wanted.keys()):
        message = f"num_rows counts {stated[table]} rows of {table!r}, which does not exist"
        advice = "restore the table, or take it out of num_rows"
        findings.append(Finding("warning", "dataset.json", message, advice))
    return findings, num_rows


def _read_footers(dataset: Dataset, table: str) -> tuple[list[Finding], int]:
    """Return what is wrong with a table's columns, and its row count."""
    findings: list[Finding] = []
    schemas: dict[str, pa.Schema] = {}
    count = 0
    for path in dataset.files(table):
        file = str(path.relative_to(dataset.path))
        try:
            with open_parquet(path) as parquet:
                schemas[file] = parquet.schema_arrow
                count += parquet.metadata.num_rows
        except DatasetError as error:
            message = str(error).removeprefix(f"{path}: ")
            findings.append(_error(file, message, "copy or write it again"))
    present = {name for schema in schemas.values() for name in schema.names}
    expected = pa.schema([*schema_of(table), *optional_fields(table, sorted(present))])
    for file, schema in schemas.items():
        findings += _column_findings(file, expected, schema)
    return findings, count


def _column_findings(file: str, expected: pa.Schema, given: pa.Schema) -> Iterator[Finding]:
    for field in expected:
        # the engine's names do not tell upper from lower case
        alike = [column for column in given if column.name.lower() == field.name.lower()]
        types = [column.type for column in alike if column.name == field.name]
        if not types:
            message = f"the column is missing (there are {given.names})"
            advice = "add or rename it"
        elif len(alike) > 1:
            message = f"{len(alike)} columns have this name, but for case"
            advice = "leave one"
        elif not _same_type(types[0], field.type):
            message = f"the column is {types[0]}, not {field.type}"
            advice = "cast it"
        else:
            continue
        yield _error(file, message, advice, field.name)


def _same_type(given: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(given) and pa.types.is_list(expected):
        return bool(given.value_type == expected.value_type)  # the item's field is free
    return bool(given == expected)


def _set_findings(dataset: Dataset) -> Iterator[Finding]:
    """Check that anchor sets have anchors, edges, and names that can be used."""
    sets = dataset.anchor_sets
    tables = dataset.tables
    for name in sets:
        if fault := naming_fault(name, dots=False):
            file = f"anchors/{name}.parquet"
            message = f"anchor set: {fault}"
            yield _error(file, message, "rename its anchors and edges")
    with_edges = {table.split("/")[1] for table in tables if table.startswith("edges/")}
    for name in sorted(with_edges - set(sets)):
        message = f"the edges belong to no anchor set (there is no anchors/{name})"
        yield _error(f"edges/{name}", message, "add the anchors, or remove the edges")
    for name in sets:
        if not any(dataset.has(f"edges/{name}/{side}") for side in SIDES):
            message = f"anchor set {name!r} has no edges (no edges/{name}/query or .../ad)"
            yield _error(f"anchors/{name}.parquet", message, "add edges, or remove the anchors")


def _name_findings(dataset: Dataset) -> Iterator[Finding]:
    """Check that there are the tables that others need, and no unknown ones."""
    for table, needed in _NEEDED_BY.items():
        if dataset.has(table) and not dataset.has(needed):
            yield _error(f"{table}.parquet", f"it exists without {needed}", f"add {needed}")
    for table in dataset.tables:
        if not is_known(table):
            message = f"the dataset directory has no table {table!r}; it is not read"
            yield Finding("warning", f"{table}.parquet", message, "check its name")


def _error(file: str, message: str, advice: str, column: str | None = None) -> Finding:
    return Finding("error", file, message, advice, column=column)
