"""The clicks of an import: read, named by numbers, and summed.

``click_rows`` (place, query, ad, weight, period)
    the user's rows with names, if a text is all that queries or ads have.
``clicks`` (place, query, ad, weight, period)
    the same with numbers.
``sums`` (query, ad, period, weight)
    the clicks of each pair in each period.
"""

from collections.abc import Mapping, Sequence

import duckdb

from ramen_ray.data.engine import count, run
from ramen_ray.data.store.schemas import SIDES
from ramen_ray.data.tables.clicks.numbering import numbered
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.data.tables.reading.loading import UserTable

LARGEST_EXACT = 1 << 40
"""Whole weights up to this can be summed as integers."""


def rows_sql(roles: Mapping[str, object], bounds: Sequence[float]) -> str:
    """Return the SQL for clicks with weight and period, which ``bounds`` (s since 1970) divide."""
    weight = "weight" if "weight" in roles else "1.0"
    periods = " + ".join(f"(time >= {bound!r})::TINYINT" for bound in bounds) or "0::TINYINT"
    return f"SELECT place, query, ad, {weight} AS weight, {periods} AS period FROM source"


def number_clicks(
    connection: duckdb.DuckDBPyConnection, table: UserTable, bounds: Sequence[float]
) -> None:
    """Read the user's clicks into ``clicks``; queries and ads have been numbered."""
    query = numbered(SIDES, "place, weight, period,", f"({rows_sql(table.columns, bounds)})")
    table.load(connection, "clicks", query)


def number_click_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Make ``clicks`` out of ``click_rows``, which are no longer needed."""
    query = numbered(SIDES, "place, weight, period,", "click_rows")
    run(connection, "numbering clicks", f"CREATE TABLE clicks AS {query}")
    connection.execute("DROP TABLE click_rows")


def sum_clicks(connection: duckdb.DuckDBPyConnection) -> None:
    """Sum the clicks of known queries and ads, of each pair in each period."""
    # a parallel sum of floats would depend on the number of threads
    whole = f"weight = floor(weight) AND weight < {LARGEST_EXACT}"
    (exact,) = connection.sql(f"SELECT bool_and({whole}) FROM clicks").fetchall()[0]
    total = "sum(weight::BIGINT)" if exact else "sum(weight ORDER BY place)"
    run(
        connection,
        "summing clicks",
        f"""CREATE TABLE sums AS
        SELECT query, ad, period, {total}::FLOAT AS weight, count(*) AS clicks
        FROM clicks WHERE query IS NOT NULL AND ad IS NOT NULL
        GROUP BY query, ad, period""",
    )
    connection.execute("DROP TABLE clicks")


def leave_out(connection: duckdb.DuckDBPyConnection, tables: UserTables) -> dict[str, int]:
    """Leave out what has too many clicks, too few, or an ad of the query's text; counts them."""
    counts = {}
    if (most := tables.max_clicks_per_query) is not None:
        busy = f"SELECT query FROM sums GROUP BY query HAVING sum(weight) > {most!r}"
        what = f"queries left out for more than {most:g} clicks"
        counts[what] = _drop(connection, "query", busy)
    if least := tables.min_click_weight:
        light = f"SELECT query, ad FROM sums GROUP BY query, ad HAVING sum(weight) < {least!r}"
        counts["pairs left out for their low weight"] = _drop(connection, "query, ad", light)
    if tables.drop_own_text:
        own = """SELECT DISTINCT sums.query, sums.ad FROM sums
            JOIN queries ON queries.number = sums.query JOIN ads ON ads.number = sums.ad
            WHERE fold(queries.text) = fold(ads.text)"""
        what = "pairs left out as an ad of the query's own text"
        counts[what] = _drop(connection, "query, ad", own)
    return counts


def _drop(connection: duckdb.DuckDBPyConnection, key: str, unwanted: str) -> int:
    """Delete the sums whose ``key`` the query selects; returns how many different ones it gives."""
    connection.execute(f"CREATE OR REPLACE TABLE unwanted AS {unwanted}")
    connection.execute(f"DELETE FROM sums WHERE ({key}) IN (SELECT {key} FROM unwanted)")
    return count(connection, "SELECT count(*) FROM unwanted")
