"""Checks of tables from their parquet footers alone: present, of the right types, not empty."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.checks.reading import unreadable
from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.parquet_files import refused_columns
from ramen_ray.data.store.schemas import (
    HELD_OUT_SIDES,
    SIDES,
    SPLITS,
    ZERO_SHOT,
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
    "queries": "every split needs queries; hold out a part of the train split",
}


@dataclass(frozen=True)
class Structure:
    """What the parquet footers show.

    Attributes:
        findings: what is wrong.
        num_rows: row counts of the tables that can be read and have the right columns.
    """

    findings: list[Finding]
    num_rows: dict[str, int]


def read_tables(dataset: Dataset) -> list[str]:
    """Name the tables that training and evaluation read: those needed, and others that exist."""
    sets, sides = dataset.anchor_sets, (*SIDES, *HELD_OUT_SIDES.values())
    splits = [f"queries/{split}" for split in SPLITS]
    optional = [
        *(f"edges/{name}/{side}" for name in sets for side in sides),
        *(f"filters/{split}" for split in (*SPLITS[1:], ZERO_SHOT)),
        f"queries/{ZERO_SHOT}",
        "novel_ads",
    ]
    needed = [*splits, "ads", *(f"anchors/{name}" for name in sets)]
    return needed + [table for table in optional if dataset.has(table)]


def check_structure(dataset: Dataset) -> dict[str, int]:
    """Check that all needed tables exist with the right columns and are not empty.

    Only parquet footers are read. Returns each table's row count.

    Raises:
        DatasetError: something is wrong; names every table, file and column.
    """
    structure = inspect_structure(dataset)
    raise_errors(dataset, structure.findings)
    return structure.num_rows


def inspect_structure(dataset: Dataset) -> Structure:
    """Read the footers of all tables and list what is wrong with tables, columns and counts."""
    findings = _name_findings(dataset)
    num_rows: dict[str, int] = {}
    wanted = dict.fromkeys([*read_tables(dataset), *dataset.tables])
    for table in filter(_is_known, wanted):
        if not dataset.has(table):
            message = f"there is no table {table!r}"
            findings.append(_finding(f"{table}.parquet", message, "training needs it"))
            continue
        found, count = _table_findings(dataset, table)
        findings += found
        if count is not None:
            num_rows[table] = count
    return Structure(findings + _count_findings(dataset), num_rows)


def _table_findings(dataset: Dataset, table: str) -> tuple[list[Finding], int | None]:
    """Check a table's footers; also returns its row count, or None if rows cannot be read."""
    findings: list[Finding] = []
    schemas: dict[str, pa.Schema] = {}
    count = 0
    for path in dataset.files(table):
        file = str(path.relative_to(dataset.path))
        try:
            with pq.ParquetFile(path) as parquet:
                schemas[file] = parquet.schema_arrow
                count += parquet.metadata.num_rows
        except Exception as error:  # code of other libraries reads the parameters of their types
            findings.append(unreadable(file, error))
    present = {name for schema in schemas.values() for name in schema.names}
    expected = pa.schema([*schema_of(table), *optional_fields(table, sorted(present))])
    for file, schema in schemas.items():
        findings += _column_findings(file, expected, schema)
    if findings:
        return findings, None
    file = f"{table}.parquet"
    if not count and not table.startswith(("filters/", "aliases/")):
        advice = _EMPTY_ADVICE.get(table.split("/")[0], "it needs rows")
        findings.append(_finding(file, f"table {table!r} is empty", advice))
    stated = _stated_counts(dataset).get(table, count)
    if stated != count:
        findings.append(
            _finding(
                file,
                f"it has {count} rows, but dataset.json says {stated}",
                "a file was changed, truncated or lost: restore it, or correct dataset.json",
            )
        )
    return findings, count


def _column_findings(file: str, expected: pa.Schema, found: pa.Schema) -> list[Finding]:
    findings = []
    for name, kind in refused_columns(found).items():
        message = f"the column is of the type {kind}, whose values may run code"
        advice = "leave it out, or write it as plain values"
        findings.append(Finding("error", file, message, advice, column=name))
    for field in expected:
        types = [column.type for column in found if column.name == field.name]
        if not types:
            message, advice = f"the column is missing (there are {found.names})", "add or rename it"
        elif len(types) > 1:
            message, advice = f"{len(types)} columns have this name", "leave one"
        elif not _same_type(types[0], field.type):
            message, advice = f"the column is {types[0]}, not {field.type}", "cast it"
        else:
            continue
        findings.append(Finding("error", file, message, advice, column=field.name))
    return findings


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return bool(found.value_type == expected.value_type)  # the item's field name is free
    return bool(found == expected)


def _name_findings(dataset: Dataset) -> list[Finding]:
    """Check that the names of tables fit together."""
    sets, tables = dataset.anchor_sets, dataset.tables
    findings = [
        _finding(
            f"anchors/{name}.parquet",
            f"anchor set: {fault}",
            "rename its anchors and edges",
        )
        for name in sets
        if (fault := naming_fault(name, dots=False))
    ]
    with_edges = {table.split("/")[1] for table in tables if table.startswith("edges/")}
    findings += [
        _finding(
            f"edges/{name}",
            f"the edges belong to no anchor set (there is no anchors/{name})",
            "add the anchors, or remove the edges",
        )
        for name in sorted(with_edges - set(sets))
    ]
    findings += [
        _finding(
            f"anchors/{name}.parquet",
            f"anchor set {name!r} has no edges (no edges/{name}/query or .../ad)",
            "add edges, or remove the anchors",
        )
        for name in sets
        if not any(dataset.has(f"edges/{name}/{side}") for side in ("query", "ad"))
    ]
    findings += [
        _finding(f"{table}.parquet", f"it exists without {needed}", f"add {needed}")
        for table, needed in _NEEDED_BY.items()
        if dataset.has(table) and not dataset.has(needed)
    ]
    return findings + [
        Finding(
            "warning",
            f"{table}.parquet",
            f"the dataset directory has no table {table!r}; it is not read",
            "check its name",
        )
        for table in tables
        if not _is_known(table)
    ]


def _is_known(table: str) -> bool:
    try:
        schema_of(table)
    except KeyError:
        return False
    return True


def _count_findings(dataset: Dataset) -> list[Finding]:
    """Check the row counts in dataset.json against the tables that exist."""
    file = "dataset.json"
    counts = _stated_counts(dataset)
    if dataset.metadata.get("num_rows", {}) != counts:
        message = "num_rows is not an object that gives each table's row count"
        return [Finding("error", file, message, "correct it, or leave num_rows out")]
    return [
        Finding(
            "warning",
            file,
            f"num_rows counts {count} rows of {table!r}, which does not exist",
            "restore the table, or take it out of num_rows",
        )
        for table, count in counts.items()
        if not dataset.has(table) and table not in read_tables(dataset)
    ]


def _stated_counts(dataset: Dataset) -> dict[str, int]:
    stated = dataset.metadata.get("num_rows")
    counts = stated.items() if isinstance(stated, dict) else ()
    return {table: count for table, count in counts if type(count) is int}


def _finding(file: str, message: str, advice: str) -> Finding:
    return Finding("error", file, message, advice)
