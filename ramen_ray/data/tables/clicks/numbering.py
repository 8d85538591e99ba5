"""Number the queries and the ads of an import, by their first appearance, and sum its clicks.

Each side has tables and views in the engine, here for queries; those of ads begin with ``ad``.
A number is the place where a node first appears: numbers ascend, with gaps.

``query_rows`` (place, id, text), of queries ``key``, of ads the columns to filter by
    the user's rows; without a table of queries, a row for each text in the clicks. The key is a
    hash of the folded text.
``query_same_id``, ``query_same_text``, ``families`` (place, first)
    rows whose id, text or folded text an earlier row has, and the first such row.
``queries`` (number, id, text), and the others; of queries ``family``
    queries that differ; those of equal text are one, ads of equal text are several. A family is
    that of all queries of one folded text, which differ in case and white space only; it is named
    by its first number.
``query_names`` (name, number)
    the ids, or texts, by which clicks, splits and filters name them.

Then clicks are summed:

``clicks_rows`` (place, query, ad, weight, period)
    the user's rows with names, if a text is all that queries or ads have.
``clicks`` (query, ad, weight, period, place)
    the same with numbers.
``sums`` (query, ad, period, weight, clicks), ``shown`` (query, ad, period, position, clicks, views)
    the clicks of each pair in each period, and its impressions, if these are asked for.
"""

import logging
from collections.abc import Sequence

from ramen_ray.data.arrays import hash_strings
from ramen_ray.data.engine import Connection, add_function, count, run
from ramen_ray.data.findings import FEW, FaultKind
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import PLURAL, Side
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.data.tables.clicks.splits import TRAIN
from ramen_ray.data.tables.reading.loading import ROWS_PER_FILE, UserTable

LARGEST_SHARE_OF_OTHER_TEXTS = 0.05
FEWEST_WITH_TOTAL = 10  # among fewer rows, one is as heavy as the others by chance
LARGEST_EXACT = 1 << 40  # whole weights up to this can be summed as integers


def register_key(connection: Connection) -> None:
    """Give SQL ``key``: a hash of a folded text, which stays the same in all versions."""
    # of the engine's hash() nobody says so, and splits are drawn by keys
    add_function(connection, "key", lambda texts: hash_strings(fold(texts)), gives="UBIGINT")


def check_totals(connection: Connection, table: UserTable, rows: str) -> None:
    """Note a row that has the weight of all others of its file; leave it out if bad ones are.

    ``rows`` names the table that was loaded, with ``place`` and ``weight``.
    """
    totals = f"""SELECT arg_max(place, weight) AS place, max(weight) AS weight
        FROM {rows} GROUP BY place // {ROWS_PER_FILE} HAVING count(*) >= {FEWEST_WITH_TOTAL}
            AND abs(sum(weight) - 2 * max(weight)) <= 1e-9 * max(weight)"""
    message = "rows have as much weight as all others of their file together"
    advice = "are they totals? Take them out, or leave them out with --skip-bad-rows"
    table.report(connection, "weight", FaultKind(message, advice, most=FEW), totals)
    if table.skip_bad_rows:
        connection.execute(f"DELETE FROM {rows} WHERE place IN (SELECT place FROM ({totals}))")


def number_nodes(connection: Connection, side: Side, listed: UserTable | None) -> dict[str, int]:
    """Make the nodes and names of ``*_rows``, which they read; returns counts.

    Nodes that are ``listed`` in a user's table may repeat ids, and queries texts, which become one.
    Otherwise ``*_rows`` is made of the texts in ``clicks_rows``.
    """
    nodes = PLURAL[side]
    rows = f"{side}_rows"
    family = ""
    families = ""
    if not listed:
        key = f", key({side}) AS key" if side == "query" else ""
        create = f"""CREATE TABLE {rows} AS
            SELECT min(place) AS place, {side} AS id, {side} AS text{key}
            FROM clicks_rows GROUP BY {side}"""
        run(connection, f"finding the {nodes} of the clicks", create)
    ids = f"FROM {rows} ANTI JOIN {side}_same_id USING (place)"
    firsts = f"{ids} ANTI JOIN {side}_same_text USING (place)"
    source = f"FROM {rows}" if listed else f"FROM {rows} WHERE false"
    same_ids = _find_repeats(connection, f"{side}_same_id", source, "id", "hash(id)")
    source = ids if listed and side == "query" else f"FROM {rows} WHERE false"
    same_texts = _find_repeats(connection, f"{side}_same_text", source, "text", "hash(text)")
    if side == "query":
        _find_repeats(connection, "families", firsts, "fold(text)", "key")
        family = ", coalesce(first, place) AS family"
        families = "LEFT JOIN families USING (place)"
    view = f"""CREATE VIEW {nodes} AS
        SELECT place AS number, {rows}.* EXCLUDE (place){family} {firsts} {families}"""
    connection.execute(view)
    names = f"""CREATE VIEW {side}_names AS
        SELECT id AS name, coalesce(first, place) AS number
        {ids} LEFT JOIN {side}_same_text USING (place)"""
    connection.execute(names)
    num_rows = count(connection, f"SELECT count(*) FROM {rows}")
    other_texts = 0
    if listed and same_ids:
        other_texts = _check_repeated_ids(connection, side, listed, num_rows)
    return {
        "different ids": num_rows - same_ids,
        "rows repeat an id": same_ids,
        "have the text of an earlier one and are merged with it": same_texts,
        "of them with a different text, which is not used": other_texts,
    }


def _find_repeats(connection: Connection, name: str, source: str, value: str, hashed: str) -> int:
    """Make a table of the rows whose ``value`` an earlier one has; returns how many there are."""
    what = f"looking for repeats: {name}"
    # hashes take a fourth of the time of texts, which are then compared where hashes are equal
    suspects = f"""CREATE OR REPLACE TEMP TABLE suspects AS
        SELECT {hashed} AS suspect {source} GROUP BY suspect HAVING count(*) > 1"""
    run(connection, what, suspects)
    some = source if count(connection, "SELECT count(*) FROM suspects") else f"{source} LIMIT 0"
    create = f"""CREATE TABLE {name} AS
        SELECT place, min(place) OVER (PARTITION BY value) AS first
        FROM (SELECT place, {value} AS value FROM ({some}) WHERE {hashed} IN (FROM suspects))
        QUALIFY place > first"""
    run(connection, what, create)
    return count(connection, f"SELECT count(*) FROM {name}")


def _check_repeated_ids(connection: Connection, side: Side, table: UserTable, num_rows: int) -> int:
    """Count the rows that repeat an id with another text, which is not used; refuse very many."""
    rows = f"""SELECT place, own.id FROM {side}_same_id JOIN {side}_rows AS own USING (place)
        JOIN {side}_rows AS earlier ON earlier.place = first WHERE own.text <> earlier.text"""
    number = count(connection, f"SELECT count(*) FROM ({rows})")
    if number > max(FEW, LARGEST_SHARE_OF_OTHER_TEXTS * num_rows):
        kind = FaultKind(
            f"of {num_rows} rows repeat an id with another text",
            "have the ids lost digits? Give each row its own, or keep the first text of each with"
            " --skip-bad-rows",
            skipped="the first text of each counts",
        )
        table.report(connection, "id", kind, rows)
    return number


def number_rows(connection: Connection, name: str, table: UserTable) -> None:
    """Make the table ``name`` of its rows, with numbers for names, and ``unknown_*`` names."""
    sides = [side for side in PLURAL if side in table.columns]
    columns = ", ".join(
        f"{side}_names.number AS {side},"
        f" CASE WHEN {side}_names.number IS NULL THEN rows.{side} END AS unknown_{side}"
        for side in sides
    )
    joins = " ".join(f"LEFT JOIN {side}_names ON {side}_names.name = rows.{side}" for side in sides)
    create = f"""CREATE TABLE {name} AS
        SELECT rows.* EXCLUDE ({", ".join(sides)}), {columns} FROM {name}_rows AS rows {joins}"""
    run(connection, f"numbering {name}", create)
    connection.execute(f"DROP TABLE {name}_rows")


def report_unknown(
    connection: Connection, name: str, table: UserTable, side: str, listed: str
) -> None:
    """Note the rows whose query or ad, of :func:`number_rows`, is not in the table ``listed``."""
    kind = FaultKind(
        f"rows name {'an ad' if side == 'ad' else 'a query'} that is not in {listed}",
        "add what is missing, or leave these rows out with --skip-bad-rows",
    )
    unknown = f"SELECT place, unknown_{side} FROM {name} WHERE unknown_{side} IS NOT NULL"
    table.report(connection, side, kind, unknown)


def sum_clicks(connection: Connection, *, counts_views: bool = False) -> None:
    """Sum the clicks of known queries and ads, and perhaps the views, by pair and period."""
    # a parallel sum of floats would depend on the number of threads
    whole = f"weight = floor(weight) AND weight < {LARGEST_EXACT}"
    (exact,) = connection.sql(f"SELECT bool_and({whole}) FROM clicks").fetchall()[0]
    total = "sum(weight::BIGINT)" if exact else "sum(weight ORDER BY place)"
    sums = f"""CREATE TABLE sums AS
        SELECT query, ad, period, {total}::FLOAT AS weight, count(*) AS clicks
        FROM clicks WHERE query IS NOT NULL AND ad IS NOT NULL AND weight > 0
        GROUP BY query, ad, period"""
    run(connection, "summing clicks", sums)
    connection.execute(
        """CREATE TABLE shown (query BIGINT, ad BIGINT, period TINYINT, position DOUBLE,
            clicks DOUBLE, views DOUBLE)"""
    )
    if counts_views:
        shown = """INSERT INTO shown BY NAME
            SELECT query, ad, period, position, sum(weight ORDER BY place) AS clicks,
                sum(views ORDER BY place) AS views
            FROM clicks WHERE query IS NOT NULL AND ad IS NOT NULL
            GROUP BY query, ad, period, position"""
        run(connection, "summing impressions", shown)
    connection.execute("DROP TABLE clicks")


def leave_out(connection: Connection, tables: UserTables) -> dict[str, int]:
    """Leave out what has too many clicks, too few, or an ad of the query's text; counts them.

    No later period's clicks decide on those of an earlier one.
    """
    counts = {}
    # as FLOAT, as weights are kept: a weight of 0.7 is no less than a limit of 0.7
    limit = "least({0!r}, 1e38)::FLOAT"
    if (most := tables.max_clicks_per_query) is not None:
        until_then = "(sum(sum(weight)) OVER (PARTITION BY query ORDER BY period))::FLOAT"
        busy = f"""SELECT query, period FROM sums GROUP BY query, period
            QUALIFY {until_then} > {limit.format(most)}"""
        what = f"queries left out for more than {most:g} clicks"
        counts[what] = _drop(connection, ["query", "period"], busy)
    if least := tables.min_click_weight:
        light = f"""SELECT query, ad, period FROM sums GROUP BY query, ad, period
            HAVING sum(weight)::FLOAT < {limit.format(least)}"""
        what = "pairs left out for their low weight"
        counts[what] = _drop(connection, ["query", "ad", "period"], light)
    if tables.drop_own_text:
        pairs = """SELECT DISTINCT sums.query, sums.ad FROM sums
            JOIN queries ON queries.number = sums.query JOIN ads ON ads.number = sums.ad
            WHERE fold(queries.text) = fold(ads.text)"""
        what = "pairs left out as an ad of the query's own text"
        counts[what] = _drop(connection, ["query", "ad"], pairs)
    return counts


def _drop(connection: Connection, key: Sequence[str], unwanted: str) -> int:
    """Delete the sums and what was shown whose ``key`` a query selects.

    Returns how many different ones there are, periods aside.
    """
    columns = ", ".join(key)
    connection.execute(f"CREATE OR REPLACE TABLE unwanted AS {unwanted}")
    for table in ("sums", "shown"):
        connection.execute(
            f"DELETE FROM {table} WHERE ({columns}) IN (SELECT {columns} FROM unwanted)"
        )
    counted = ", ".join(name for name in key if name != "period")
    return count(connection, f"SELECT count(*) FROM (SELECT DISTINCT {counted} FROM unwanted)")


PRIOR = 1.0
"""Expected clicks by which each pair is taken to have been shown more, and clicked as expected."""
SOURCE = "shown"

logger = logging.getLogger(__name__)


def check_views(connection: Connection, table: UserTable) -> None:
    """Note rows with more clicks than views; warn of positions that are all the same."""
    positions = "SELECT count(DISTINCT position) FROM clicks_rows"
    if "position" in table.columns and count(connection, positions) == 1:
        logger.warning("%s: all positions are the same, and say nothing", table.source)
    if "views" not in table.columns:
        return
    table.report(
        connection,
        "views",
        FaultKind(
            "rows have more clicks than views",
            "correct them, or leave them out with --skip-bad-rows",
        ),
        "SELECT place, views FROM clicks_rows WHERE weight > views",
    )
    connection.execute("DELETE FROM clicks_rows WHERE weight > views")


def expect_clicks(connection: Connection) -> None:
    """Make ``expected``; raises a DatasetError if every view was clicked."""
    if not count(connection, "SELECT count(*) FROM shown WHERE views > clicks"):
        raise DatasetError(
            "the log has no impression without a click, so no clicks are to be expected: give it "
            "rows of 0 clicks, or name its column of impressions with --columns.clicks-views"
        )
    # ordered, as a parallel sum of floats would depend on the number of threads
    create = """CREATE TABLE expected AS
        WITH rates AS (
            SELECT period, position,
                sum(clicks ORDER BY query, ad) / sum(views ORDER BY query, ad) AS rate
            FROM shown GROUP BY period, position)
        SELECT query, ad, period, sum(clicks ORDER BY position) AS clicks,
            sum(views * rate ORDER BY position) AS expected
        FROM shown JOIN rates USING (period, position) GROUP BY query, ad, period"""
    run(connection, "expecting clicks", create)


def weigh_by_coec(connection: Connection) -> None:
    """Weigh train clicks by clicks over expected clicks, both plus PRIOR.

    Held-out clicks keep their number, by which metrics weigh queries.
    """
    coec = f"((expected.clicks + {PRIOR}) / (expected + {PRIOR}))::FLOAT"
    connection.execute(
        f"""UPDATE counted SET weight = {coec}
        FROM expected JOIN kept_clicks USING (query, ad, period)
        WHERE split = {TRAIN} AND counted.query = expected.query
            AND counted.ad = expected.ad AND counted.period = expected.period"""
    )


def judge_refused(connection: Connection, min_expected: float) -> dict[str, int]:
    """Judge those ads 0 that had ``min_expected`` clicks to expect, and none; returns counts."""
    judged = """CREATE TABLE IF NOT EXISTS judged (
        place BIGINT, query BIGINT, ad BIGINT, grade DOUBLE, source VARCHAR)"""
    connection.execute(judged)
    refused = f"""FROM expected WHERE expected >= {min_expected!r}
        AND clicks = 0 AND (query, ad) NOT IN (SELECT query, ad FROM counted)"""
    connection.execute(
        f"""INSERT INTO judged BY NAME
        SELECT DISTINCT 0::BIGINT AS place, query, ad, 0.0::DOUBLE AS grade, '{SOURCE}' AS source
        {refused}"""
    )
    return {"pairs shown and refused": count(connection, f"SELECT count(*) {refused}")}
