"""Find everything that is wrong or doubtful in a dataset directory.

Each table is read once. What footers show is in :mod:`~ramen_ray.data.checks.structure`. Rules for
what is in the tables are SQL, in :mod:`~ramen_ray.data.checks.rows` and
:mod:`~ramen_ray.data.checks.tables`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import gettempdir

from ramen_ray.data.checks.loading import Severities, Tables
from ramen_ray.data.checks.rows import row_rules
from ramen_ray.data.checks.structure import inspect_structure
from ramen_ray.data.checks.tables import (
    UNLINKED,
    ascend,
    click_leaks,
    cross_rules,
    edge_leaks,
    repeat_rules,
)
from ramen_ray.data.engine import count, engine, name_literal
from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.leaks import find_answers
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN


def check(dataset: Dataset) -> None:
    """Raise a DatasetError that lists all errors that :func:`validate` finds, if there are any."""
    raise_errors(dataset, _find(dataset, ("error",)))


def validate(
    dataset: Dataset, progress: Callable[[str], None] = lambda stage: None
) -> list[Finding]:
    """Check the whole dataset directory; returns all findings, errors first.

    Tables that cannot be read are reported and left out of the later checks. Tables of texts, and
    one of edges, are in memory, or beside it in the folder for temporary files. ``progress`` is
    called with the name of each table before it is read.
    """
    return _find(dataset, ("error", "warning"), progress)


def _find(
    dataset: Dataset, severities: Severities, progress: Callable[[str], None] = lambda stage: None
) -> list[Finding]:
    structure = inspect_structure(dataset)
    with engine(Path(gettempdir())) as connection:
        tables = Tables(connection, dataset, severities)
        of_rows: list[Finding] = []
        of_tables: list[Finding] = []

        def load(table: str) -> None:
            progress(table)
            of_rows.extend(tables.load(table) or _row_findings(tables, table, structure.num_rows))

        edges = [table for table in structure.num_rows if table.startswith("edges/")]
        for table in structure.num_rows:
            if table not in edges:
                load(table)
        of_tables += _table_findings(tables)
        find_leaks = "warning" in severities and tables.columns.keys() >= set(NODE_TABLES.values())
        if find_leaks:
            find_answers(connection, tables.columns)
        for table in edges:  # one at a time, as they may be larger than all else
            load(table)
            if table in tables.columns:
                of_tables += _edge_findings(tables, table, find_leaks)
                tables.drop(table)
        of_tables += tables.broken(TRAIN, [UNLINKED]) if TRAIN in tables.columns else []
        of_tables += click_leaks(tables) if find_leaks else []
    found = [*structure.findings, *of_rows, *of_tables]
    wanted = [finding for finding in found if finding.severity in severities]
    return sorted(wanted, key=lambda finding: finding.severity)


def _row_findings(tables: Tables, table: str, num_rows: Mapping[str, int]) -> list[Finding]:
    """Check a table's rows, and forget what only these rules need; edges are dropped soon."""
    columns = tables.columns[table]
    found = tables.broken(table, row_rules(table, columns, num_rows))
    if table.startswith("aliases/"):
        tables.drop(table)
    elif not table.startswith("edges/"):
        tables.forget(table)
    return found


def _table_findings(tables: Tables) -> list[Finding]:
    """Check all tables but those of edges, and begin to look for queries without any."""
    found = [finding for table in tables.columns for finding in _repeat_findings(tables, table)]
    if TRAIN in tables.columns:
        train = name_literal(TRAIN)
        unclicked = f"SELECT rowid AS row, query_id FROM {train} WHERE len(ad_ids) = 0"
        tables.connection.execute(f"CREATE TABLE unlinked AS {unclicked}")
        if count(tables.connection, f"SELECT count(*) FROM {train} WHERE len(ad_ids) > 0") == 0:
            advice = "training needs queries with clicks"
            found.append(Finding("error", f"{TRAIN}.parquet", "no train query has a click", advice))
    for table, rule in cross_rules(tables.columns):
        found += tables.broken(table, [rule])
    return found


def _repeat_findings(tables: Tables, table: str) -> list[Finding]:
    rules = repeat_rules(table, tables.columns[table])
    is_sure = count(tables.connection, ascend(table))
    return tables.broken(table, rules[1:] if is_sure else rules)


def _edge_findings(tables: Tables, table: str, find_leaks: bool) -> list[Finding]:
    """Check a table of edges; look for leaks only in the sets used by default."""
    found = _repeat_findings(tables, table)
    _, anchor_set, side = table.split("/")
    if side == "query" and TRAIN in tables.columns:
        linked = f"SELECT query_id FROM {name_literal(table)}"
        tables.connection.execute(f"DELETE FROM unlinked WHERE query_id IN ({linked})")
    has_anchors = f"anchors/{anchor_set}" in tables.columns and side in NODE_TABLES
    if find_leaks and has_anchors and anchor_set in tables.dataset.strict_anchor_sets:
        found += edge_leaks(tables, table)
    return found
