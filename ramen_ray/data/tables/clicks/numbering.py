"""Number the queries and the ads of an import, in the order of their first appearance.

Each side has a table and two views in the engine, here for queries; those of ads begin with ``ad``.
A number is the place where a node first appears: numbers ascend, with gaps.

``query_rows`` (place, id, text), and of ads the columns to filter by
    the user's rows; without a table of queries, a row for each text in the clicks.
``queries`` (number, id, text), and the others; of queries ``family``
    queries that differ; those of equal text are one, ads of equal text are several. A family is
    that of all queries of one folded text, which differ in case and white space only; it is named
    by its first number.
``query_names`` (name, number)
    the ids, or texts, by which clicks, splits and filters name them.
"""

from collections.abc import Sequence

import duckdb

from ramen_ray.data.engine import count, run
from ramen_ray.data.findings import FEW
from ramen_ray.data.store.schemas import PLURAL, Side
from ramen_ray.data.tables.reading.loading import UserTable

LARGEST_SHARE_OF_OTHER_TEXTS = 0.05


def rows_from_clicks(connection: duckdb.DuckDBPyConnection, side: Side) -> None:
    """Make ``*_rows`` of the texts in ``click_rows``."""
    run(
        connection,
        f"finding the {PLURAL[side]} of the clicks",
        f"""CREATE TABLE {side}_rows AS
        SELECT min(place) AS place, {side} AS id, {side} AS text FROM click_rows GROUP BY {side}""",
    )


def number_nodes(
    connection: duckdb.DuckDBPyConnection, side: Side, *, listed: bool
) -> dict[str, int]:
    """Make the nodes and names of ``*_rows``, which they read; returns counts.

    Only if the nodes are ``listed`` in a user's table may ids repeat, and may queries of equal
    text, which become one.
    """
    nodes, merge, rows = PLURAL[side], listed and side == "query", f"{side}_rows"
    ids = _first_of_each(connection, rows, "id", f"{side}_ids", is_sure=not listed)
    firsts = _first_of_each(connection, ids, "text", f"{side}_firsts", is_sure=not merge)
    family, members = "", ""
    if side == "query":
        _find_families(connection, firsts)
        family = ", coalesce(family, place) AS family"
        members = "LEFT JOIN members ON number = place"
    connection.execute(
        f"""CREATE VIEW {nodes} AS
        SELECT place AS number, {firsts}.* EXCLUDE (place){family} FROM {firsts} {members}"""
    )
    merged = f"LEFT JOIN {firsts}_repeated AS first ON value = text" if firsts != ids else ""
    number = "coalesce(first.place, ids.place)" if merged else "place"
    connection.execute(
        f"""CREATE VIEW {side}_names AS
        SELECT id AS name, {number} AS number FROM {ids} AS ids {merged}"""
    )
    num_rows, num_ids, num_nodes = (
        count(connection, f"SELECT count(*) FROM {table}") for table in (rows, ids, firsts)
    )
    return {
        "different ids": num_ids,
        "rows repeat an id": num_rows - num_ids,
        "have the text of an earlier one and are merged with it": num_ids - num_nodes,
    }


def _first_of_each(
    connection: duckdb.DuckDBPyConnection, rows: str, column: str, name: str, *, is_sure: bool
) -> str:
    """Return what has the first row of each value of a column: ``rows`` if none repeats, or a view.

    The view ``name`` leaves out the others by ``*_repeated``, which has the values that repeat.
    """
    if is_sure:
        return rows
    _find_repeats(connection, rows, column, f"{name}_repeated")
    if not count(connection, f"SELECT count(*) FROM {name}_repeated"):
        return rows
    connection.execute(
        f"""CREATE VIEW {name} AS
        SELECT rows.* FROM {rows} AS rows LEFT JOIN {name}_repeated AS first ON value = {column}
        WHERE first.place IS NULL OR first.place = rows.place"""
    )
    return name


def _find_families(connection: duckdb.DuckDBPyConnection, firsts: str) -> None:
    """Make ``members`` (number, family) of the families of several queries."""
    _find_repeats(connection, firsts, "fold(text)", "families")
    run(
        connection,
        "comparing queries",
        f"""CREATE TABLE members AS
        SELECT firsts.place AS number, families.place AS family
        FROM {firsts} AS firsts JOIN families ON families.value = fold(firsts.text)""",
    )


def _find_repeats(connection: duckdb.DuckDBPyConnection, rows: str, value: str, name: str) -> None:
    """Make the table ``name`` (value, place) of the values that repeat, and where each begins."""
    what = f"looking for repeats in {rows}"
    # hashes take a fourth of the time of texts, which are then compared where hashes are equal
    run(
        connection,
        what,
        f"""CREATE OR REPLACE TEMP TABLE suspects AS
        SELECT hash({value}) AS suspect FROM {rows} GROUP BY suspect HAVING count(*) > 1""",
    )
    source = rows if count(connection, "SELECT count(*) FROM suspects") else f"{rows} LIMIT 0"
    run(
        connection,
        what,
        f"""CREATE TABLE {name} AS SELECT value, min(place) AS place
        FROM (SELECT {value} AS value, place FROM (FROM {source}))
        WHERE hash(value) IN (FROM suspects) GROUP BY value HAVING count(*) > 1""",
    )


def check_repeated_ids(connection: duckdb.DuckDBPyConnection, side: Side, table: UserTable) -> int:
    """Count the rows that repeat an id with another text, which is not used; refuse very many."""
    rows = f"""SELECT r.place, r.id FROM {side}_rows AS r JOIN {side}_ids AS i ON r.id = i.id
        WHERE r.text <> i.text"""
    number = count(connection, f"SELECT count(*) FROM ({rows})")
    num_rows = count(connection, f"SELECT count(*) FROM {side}_rows")
    if number > max(FEW, LARGEST_SHARE_OF_OTHER_TEXTS * num_rows):
        message = f"of {num_rows} rows repeat an id with another text"
        advice = (
            "have the ids lost digits? Give each row its own, or keep the first text of each with"
            " --skip-bad-rows"
        )
        table.report(connection, "id", message, rows, advice)
        table.check()
    return number


def report_unknown(
    connection: duckdb.DuckDBPyConnection, side: Side, table: UserTable, named: str, listed: str
) -> None:
    """Note the rows of ``table`` that name no query or ad that is ``listed``.

    ``named`` is what :func:`numbered` made of them.
    """
    what = "an ad" if side == "ad" else "a query"
    table.report(
        connection,
        side,
        f"rows name {what} that is not in {listed}",
        f"SELECT place, unknown_{side} FROM {named} WHERE unknown_{side} IS NOT NULL",
        "add what is missing, or leave these rows out with --skip-bad-rows",
        f"SELECT name FROM {side}_names",
    )


def numbered(sides: Sequence[Side], others: str, rows: str) -> str:
    """Return the SQL that selects ``others`` (``a, b,``) of ``rows``, and numbers for names.

    Where a side's number is null, its name is in ``unknown_*``.
    """
    columns = ", ".join(
        f"{side}_names.number AS {side},"
        f" CASE WHEN {side}_names.number IS NULL THEN rows.{side} END AS unknown_{side}"
        for side in sides
    )
    joins = " ".join(f"LEFT JOIN {side}_names ON {side}_names.name = rows.{side}" for side in sides)
    return f"SELECT {others} {columns} FROM {rows} AS rows {joins}"
