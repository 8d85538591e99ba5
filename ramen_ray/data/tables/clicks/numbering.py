"""Number the queries and the ads of an import, in the order of their first appearance.

Each kind has three tables in the engine, here for queries; those of ads begin with ``ad``.

``query_rows`` (place, id, text)
    the user's rows; without a table of queries, a row for each text in the clicks.
``queries`` (number, id, text), and of queries ``folded`` and ``family``
    queries that differ; those of equal text are one, ads of equal text are several. A family is
    that of all queries of one folded text, which differ in case and white space only; it is named
    by its first number.
``query_names`` (name, number)
    the ids, or texts, by which clicks, splits and filters name them.
"""

from typing import Literal

import duckdb

from ramen_ray.data.engine import count, run
from ramen_ray.data.tables.reading.faults import EXAMPLES, FEW
from ramen_ray.data.tables.reading.loading import UserTable

Kind = Literal["query", "ad"]
PLURAL: dict[Kind, str] = {"query": "queries", "ad": "ads"}
LARGEST_SHARE_OF_OTHER_TEXTS = 0.05


def load_nodes(connection: duckdb.DuckDBPyConnection, kind: Kind, table: UserTable) -> None:
    """Read the user's table of queries or ads into ``*_rows``."""
    table.load(connection, f"{kind}_rows", "SELECT place, id, text FROM source")


def rows_from_clicks(connection: duckdb.DuckDBPyConnection, kind: Kind) -> None:
    """Make ``*_rows`` of the texts in ``click_rows``."""
    run(
        connection,
        f"finding the {PLURAL[kind]} of the clicks",
        f"""CREATE TABLE {kind}_rows AS
        SELECT min(place) AS place, {kind} AS id, {kind} AS text FROM click_rows GROUP BY {kind}""",
    )


def number_nodes(
    connection: duckdb.DuckDBPyConnection, kind: Kind, *, listed: bool
) -> dict[str, int]:
    """Make the tables of numbered nodes and of names out of ``*_rows``.

    Args:
        connection: the engine.
        kind: queries or ads.
        listed: whether the rows are of a user's table, so that ids may repeat; of queries, texts
            may too, and those of equal text become one.

    Returns:
        how many ids there are, and how many rows repeat one or were merged, by what they are.
    """
    nodes, merge = PLURAL[kind], listed and kind == "query"
    run(
        connection,
        f"numbering {nodes}",
        f"""CREATE {"TABLE" if listed else "VIEW"} {kind}_ids AS
        {f"SELECT id, {_FIRST} FROM {kind}_rows GROUP BY id" if listed else f"FROM {kind}_rows"}""",
    )
    distinct = f"(SELECT text, {_FIRST_ID} FROM {kind}_ids GROUP BY text)"
    folded = ", fold(text) AS folded" if kind == "query" else ""
    run(
        connection,
        f"numbering {nodes}",
        f"""CREATE TABLE {nodes} AS
        SELECT row_number() OVER (ORDER BY place) - 1 AS number, id, text{folded}
        FROM {distinct if merge else f"{kind}_ids"}""",
    )
    if kind == "query":
        _find_families(connection)
    names = f"{kind}_ids AS ids JOIN {nodes} AS nodes ON nodes.text = ids.text"
    run(
        connection,
        f"naming {nodes}",
        f"""CREATE {"TABLE" if merge else "VIEW"} {kind}_names AS
        {
            f"SELECT ids.id AS name, number FROM {names}"
            if merge
            else f"SELECT id AS name, number FROM {nodes}"
        }""",
    )
    num_rows, num_ids, num_nodes = (
        count(connection, f"SELECT count(*) FROM {table}")
        for table in (f"{kind}_rows", f"{kind}_ids", nodes)
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


def check_repeated_ids(connection: duckdb.DuckDBPyConnection, kind: Kind, table: UserTable) -> int:
    """Count the rows that repeat an id with another text, which is not used.

    Raises:
        DatasetError: these are so many that the ids must be wrong, and bad rows are not skipped.
    """
    of_rows = f"FROM {kind}_rows AS r JOIN {kind}_ids AS i ON r.id = i.id WHERE r.text <> i.text"
    number = count(connection, f"SELECT count(*) {of_rows}")
    num_rows = count(connection, f"SELECT count(*) FROM {kind}_rows")
    if number <= max(FEW, LARGEST_SHARE_OF_OTHER_TEXTS * num_rows):
        return number
    found = connection.sql(f"SELECT r.place, r.id {of_rows} ORDER BY r.place LIMIT {EXAMPLES}")
    table.report(
        "id",
        f"of {num_rows} rows repeat an id with another text",
        "have the ids lost digits? Give each row its own, or keep the first text of each with"
        " --skip-bad-rows",
        found.fetchall(),
        number,
    )
    table.check()
    return number


def report_unknown(
    connection: duckdb.DuckDBPyConnection, kind: Kind, table: UserTable, named: str, listed: str
) -> None:
    """Note the rows that name no known query or ad.

    Args:
        connection: the engine.
        kind: what is named.
        table: where the rows come from.
        named: an engine's table with ``place`` and, in ``unknown_query`` or ``unknown_ad``, the
            names that are not known.
        listed: what lists those that are.
    """
    unknown = f"FROM {named} WHERE unknown_{kind} IS NOT NULL"
    number = count(connection, f"SELECT count(*) {unknown}")
    if number:
        found = connection.sql(
            f"SELECT place, unknown_{kind} {unknown} ORDER BY place LIMIT {EXAMPLES}"
        )
        what = "an ad" if kind == "ad" else "a query"
        table.report(
            kind,
            f"rows name {what} that is not in {listed}",
            "add what is missing, or leave these rows out with --skip-bad-rows",
            found.fetchall(),
            number,
        )


def numbered(kinds: dict[Kind, str], others: str, rows: str) -> str:
    """Return the SQL that puts numbers in place of names.

    Args:
        kinds: what is named, and the column of ``rows`` that names it.
        others: the columns of ``rows`` to keep, each followed by a comma.
        rows: what is read.

    Returns:
        a query for ``others`` and, of each kind, its number, and where that is null the name as
        ``unknown_*``.
    """
    columns = ", ".join(
        f"{kind}_names.number AS {kind},"
        f" CASE WHEN {kind}_names.number IS NULL THEN rows.{column} END AS unknown_{kind}"
        for kind, column in kinds.items()
    )
    joins = " ".join(
        f"LEFT JOIN {kind}_names ON {kind}_names.name = rows.{column}"
        for kind, column in kinds.items()
    )
    return f"SELECT {others} {columns} FROM {rows} AS rows {joins}"
