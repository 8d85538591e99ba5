"""Number the queries and the ads of an import, in the order of their first appearance.

Each side has three tables in the engine, here for queries; those of ads begin with ``ad``.

``query_rows`` (place, id, text)
    the user's rows; without a table of queries, a row for each text in the clicks.
``queries`` (number, id, text), and of queries ``folded`` and ``family``
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


def load_nodes(connection: duckdb.DuckDBPyConnection, side: Side, table: UserTable) -> None:
    """Read the user's table of queries or ads into ``*_rows``."""
    table.load(connection, f"{side}_rows", "SELECT place, id, text FROM source")


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
    """Make the tables of numbered nodes and of names out of ``*_rows``; returns counts.

    Only if the nodes are ``listed`` in a user's table may ids repeat, and may queries of equal
    text, which become one.
    """
    nodes, merge = PLURAL[side], listed and side == "query"
    run(
        connection,
        f"numbering {nodes}",
        f"""CREATE {"TABLE" if listed else "VIEW"} {side}_ids AS
        {f"SELECT id, {_FIRST} FROM {side}_rows GROUP BY id" if listed else f"FROM {side}_rows"}""",
    )
    distinct = f"(SELECT text, {_FIRST_ID} FROM {side}_ids GROUP BY text)"
    folded = ", fold(text) AS folded" if side == "query" else ""
    run(
        connection,
        f"numbering {nodes}",
        f"""CREATE TABLE {nodes} AS
        SELECT row_number() OVER (ORDER BY place) - 1 AS number, id, text{folded}
        FROM {distinct if merge else f"{side}_ids"}""",
    )
    if side == "query":
        _find_families(connection)
    names = f"{side}_ids AS ids JOIN {nodes} AS nodes ON nodes.text = ids.text"
    run(
        connection,
        f"naming {nodes}",
        f"""CREATE {"TABLE" if merge else "VIEW"} {side}_names AS
        {
            f"SELECT ids.id AS name, number FROM {names}"
            if merge
            else f"SELECT id AS name, number FROM {nodes}"
        }""",
    )
    num_rows, num_ids, num_nodes = (
        count(connection, f"SELECT count(*) FROM {table}")
        for table in (f"{side}_rows", f"{side}_ids", nodes)
    )
    return {
        "different ids": num_ids,
        "rows repeat an id": num_rows - num_ids,
        "have the text of an earlier one and are merged with it": num_ids - num_nodes,
    }


def _find_families(connection: duckdb.DuckDBPyConnection) -> None:
    run(
        connection,
        "comparing queries",
        """CREATE TABLE families AS
        SELECT folded, min(number) AS family FROM queries GROUP BY folded HAVING count(*) > 1""",
    )
    run(
        connection,
        "comparing queries",
        """CREATE OR REPLACE TABLE queries AS
        SELECT queries.*, coalesce(family, number) AS family
        FROM queries LEFT JOIN families USING (folded)""",
    )


_FIRST = "min(place) AS place, arg_min(text, place) AS text"
_FIRST_ID = "min(place) AS place, arg_min(id, place) AS id"


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
    )


def numbered(sides: Sequence[Side], others: str, rows: str) -> str:
    """Return the SQL that puts numbers in place of names.

    It selects ``others``, columns of ``rows`` that are each followed by a comma, and of each side
    its number, and where that is null the name as ``unknown_*``.
    """
    columns = ", ".join(
        f"{side}_names.number AS {side},"
        f" CASE WHEN {side}_names.number IS NULL THEN rows.{side} END AS unknown_{side}"
        for side in sides
    )
    joins = " ".join(f"LEFT JOIN {side}_names ON {side}_names.name = rows.{side}" for side in sides)
    return f"SELECT {others} {columns} FROM {rows} AS rows {joins}"
