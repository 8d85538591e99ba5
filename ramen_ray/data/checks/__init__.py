"""Find everything that is wrong or doubtful in a dataset directory.

Each table is read once. The rules are rows of tables, in :mod:`~ramen_ray.data.checks.structure`
(footers), :mod:`~ramen_ray.data.checks.rows` (by batch) and :mod:`~ramen_ray.data.checks.tables`.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import gettempdir

from ramen_ray.data.checks.leaks import click_leaks, edge_leaks, find_answers
from ramen_ray.data.checks.loading import Tables
from ramen_ray.data.checks.rows import Severities
from ramen_ray.data.checks.structure import inspect_structure
from ramen_ray.data.checks.tables import UNLINKED, cross_rules, repeat_rules
from ramen_ray.data.engine import count, engine, name_literal
from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN


def check(dataset: Dataset) -> None:
    """Refuse a dataset directory in which :func:`validate` finds errors.

    Raises:
        DatasetError: lists all of them.
    """
    raise_errors(dataset, _find(dataset, ("error",)))


def validate(
    dataset: Dataset, progress: Callable[[str], None] = lambda stage: None
) -> list[Finding]:
    """Check the whole dataset directory; returns all findings, errors first.

    Tables that cannot be read are reported and left out of the later checks. Tables of texts, and
    one of edges, are in memory, or beside it in the folder for temporary files.

    Args:
        dataset: the dataset directory.
        progress: called with the name of each table before it is read.
    """
    return _find(dataset, ("error", "warning"), progress)


def _find(
    dataset: Dataset, severities: Severities, progress: Callable[[str], None] = lambda stage: None
) -> list[Finding]:
    structure = inspect_structure(dataset)
    with engine(Path(gettempdir())) as connection:
        tables = Tables(connection, dataset, structure.num_rows, severities)
        edges = [table for table in structure.num_rows if table.startswith("edges/")]
        of_rows: list[Finding] = []
        for table in structure.num_rows:
            if table not in edges:
                progress(table)
                of_rows += tables.load(table)
        of_tables = _table_findings(tables)
        find_leaks = "warning" in severities and tables.columns.keys() >= set(NODE_TABLES.values())
        strict = dataset.strict_anchor_sets if find_leaks else []
        if find_leaks:
            find_answers(tables)
        for table in edges:
            progress(table)
            of_rows += tables.load(table)
            of_tables += _edge_findings(tables, table, strict)
        of_tables += tables.broken(UNLINKED)
        of_tables += click_leaks(tables) if find_leaks else []
    found = [*structure.findings, *of_rows, *of_tables]
    wanted = [finding for finding in found if finding.severity in severities]
    return sorted(wanted, key=lambda finding: finding.severity)


def _table_findings(tables: Tables) -> list[Finding]:
    """Check all tables but those of edges, and begin to look for queries without any."""
    found = [
        finding
        for table, columns in tables.columns.items()
        for rule in repeat_rules(table, columns, table in tables.ascending)
        for finding in tables.broken(rule)
    ]
    tables.connection.execute("CREATE TABLE unlinked (row BIGINT, query_id BIGINT)")
    if TRAIN in tables.columns:
        train = name_literal(TRAIN)
        unclicked = f"SELECT rowid, query_id FROM {train} WHERE len(ad_ids) = 0"
        tables.connection.execute(f"INSERT INTO unlinked {unclicked}")
        if count(tables.connection, f"SELECT count(*) FROM {train} WHERE len(ad_ids) > 0") == 0:
            advice = "training needs queries with clicks"
            found.append(Finding("error", f"{TRAIN}.parquet", "no train query has a click", advice))
    rules = cross_rules(tables.columns)
    return found + [finding for rule in rules for finding in tables.broken(rule)]


def _edge_findings(tables: Tables, table: str, strict: Collection[str]) -> list[Finding]:
    """Check a table of edges, and forget it; look for leaks if its anchor set is ``strict``."""
    if table not in tables.columns:
        return []
    columns, ascend = tables.columns[table], table in tables.ascending
    found = [
        finding for rule in repeat_rules(table, columns, ascend) for finding in tables.broken(rule)
    ]
    _, anchor_set, side = table.split("/")
    if side == "query" and count(tables.connection, "SELECT count(*) FROM unlinked"):
        linked = f"SELECT query_id FROM {name_literal(table)}"
        tables.connection.execute(f"DELETE FROM unlinked WHERE query_id IN ({linked})")
    has_anchors = f"anchors/{anchor_set}" in tables.columns
    if anchor_set in strict and has_anchors and side in NODE_TABLES:
        found += edge_leaks(tables, table)
    tables.drop(table)
    return found
