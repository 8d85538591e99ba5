"""Decide which queries and ads of an import are kept, in which split, with which ids.

``periods`` (family, period)
    the first period in which any query of a family is clicked.
``counted`` (query, ad, weight)
    the sums of clicks that count: those in their query's period, on ads that are kept.
``kept_ads`` (number, ad_id) and ``kept_queries`` (number, split, query_id)
    what is kept. Splits are numbered as in SPLITS.

A query is in one split, and so are all of its clicks; but if all later clicks are held out, it is
in each split in whose period it is clicked.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import to_lists, uniforms
from ramen_ray.data.engine import (
    ROWS_PER_BATCH,
    TEXTS_PER_BATCH,
    Connection,
    add_function,
    column_literal,
    count,
    run,
    stream,
)
from ramen_ray.data.findings import FaultKind
from ramen_ray.data.store.dataset import DatasetError, DatasetWriter
from ramen_ray.data.store.schemas import JUDGED_FOLDER, PLURAL, SPLITS, Side
from ramen_ray.data.tables.clicks.settings import Splits
from ramen_ray.data.tables.reading.loading import UserTable

TRAIN, VALIDATION, TEST = range(3)
_KEY = 1

ADVICE = {
    "train": "hold out fewer test and validation queries, check splits.test_from and"
    " splits.validation_from, or lower the minimum counts",
    "validation": "raise splits.validation_fraction, or check splits.validation_from or the given"
    " splits",
    "test": "raise splits.test_fraction, or check splits.test_from or the given splits",
}


def count_clicks(connection: Connection, *, all_periods: bool) -> None:
    """Make ``periods`` and ``counted``.

    Queries whose texts differ only in case and white space share a period. Without ``all_periods``,
    only a query's first period counts: training must see no later click.
    """
    periods = """CREATE TABLE periods AS
        SELECT coalesce(first, query) AS family, min(period) AS period
        FROM (SELECT query, min(period) AS period FROM sums GROUP BY query)
        LEFT JOIN families ON place = query GROUP BY ALL"""
    run(connection, "finding first clicks", periods)
    if not all_periods and count(connection, "SELECT max(period) FROM sums"):
        for table in ("sums", "shown"):
            delete = f"""DELETE FROM {table} USING periods, queries
                WHERE queries.number = query AND queries.family = periods.family
                    AND {table}.period <> periods.period"""
            run(connection, "counting clicks", delete)
    connection.execute("ALTER TABLE sums RENAME TO counted")


def split_by_draws(connection: Connection, splits: Splits) -> None:
    """Make ``family_splits`` (family, split) of what is held out: by period, the first by draws."""
    _register_draws(connection, splits.seed)
    held_out = 0.0 if splits.test_from else splits.test_fraction
    validation = 0.0 if splits.validation_from else splits.validation_fraction
    family_splits = f"""CREATE TABLE family_splits AS
        WITH draws AS MATERIALIZED (  -- else they are drawn anew for each use
            SELECT number, draw(key) AS drawn FROM queries WHERE number = family)
        SELECT family, period AS split FROM periods WHERE period > {TRAIN} UNION ALL
        SELECT family, CASE WHEN drawn < {held_out!r} THEN {TEST} ELSE {VALIDATION} END AS split
        FROM draws JOIN periods ON periods.family = number
        WHERE period = {TRAIN} AND drawn < {held_out + validation!r}"""
    run(connection, "splitting queries", family_splits)


def read_given(connection: Connection, table: UserTable) -> None:
    """Make ``family_splits`` (family, split) of the ``table``, which is numbered.

    Of several splits of a query, up to case and white space, the last in SPLITS counts, and rows
    with another are bad.
    """
    family_splits = """CREATE TABLE family_splits AS SELECT family, max(split) AS split
        FROM splits JOIN queries ON queries.number = splits.query GROUP BY family"""
    run(connection, "splitting queries", family_splits)
    table.report(
        connection,
        "query",
        FaultKind(
            "rows give a query another split than other rows, up to case and white space",
            "give it one; with --skip-bad-rows the held-out one counts",
            skipped="the held-out split counts",
        ),
        """SELECT place, id FROM splits JOIN queries ON queries.number = splits.query
        JOIN family_splits USING (family) WHERE splits.split <> family_splits.split""",
    )


def split_as_given(connection: Connection, splits: Splits) -> None:
    """Draw some clicked train queries for ``family_splits`` if none is given validation."""
    if not count(connection, f"SELECT count(*) FROM family_splits WHERE split = {VALIDATION}"):
        _register_draws(connection, splits.seed)
        family_splits = f"""CREATE OR REPLACE TABLE family_splits AS
            SELECT family, max(split) AS split FROM (
                FROM family_splits UNION ALL
                SELECT periods.family, {VALIDATION} FROM periods
                LEFT JOIN family_splits USING (family)
                JOIN queries ON queries.number = periods.family
                WHERE coalesce(split, {TRAIN}) = {TRAIN}
                    AND draw(key) < {splits.validation_fraction!r})
            GROUP BY family"""
        connection.execute(family_splits)


def keep_ads(connection: Connection, fewest_queries: int, *, all_periods: bool) -> None:
    """Make ``kept_ads``, of so many train queries with a click, and leave the others' clicks out.

    Held-out clicks do not count: they must not decide what training sees.
    """
    few = ""
    if fewest_queries:
        split = "period" if all_periods else "split"
        few = f"""WHERE number IN (
            SELECT ad FROM counted JOIN queries ON number = query
            LEFT JOIN family_splits USING (family)
            WHERE coalesce({split}, {TRAIN}) = {TRAIN}
            GROUP BY ad HAVING count(DISTINCT query) >= {fewest_queries:d})"""
    kept_ads = f"""CREATE TABLE kept_ads AS
        SELECT number, row_number() OVER (ORDER BY number) - 1 AS ad_id FROM ads {few}"""
    run(connection, "counting clicks", kept_ads)
    if few:
        connection.execute("DELETE FROM counted WHERE ad NOT IN (SELECT number FROM kept_ads)")


def keep_queries(connection: Connection, fewest_ads: int, *, all_periods: bool) -> dict[str, int]:
    """Make ``kept_queries`` of those with ``fewest_ads`` that count, and ``kept_clicks``.

    Queries that are not in ``family_splits`` are train queries; with ``all_periods`` each is in the
    splits of its clicks. Of 0 ads, train queries need none, and others one. Returns counts of what
    is left out. Raises a DatasetError if a split would have no query with a click.
    """
    without = f"ads = 0 AND split = {TRAIN}" if not fewest_ads else "false"
    split, by = ("period", "query, period") if all_periods else ("split", "query")
    kept_queries = f"""CREATE OR REPLACE TABLE kept_queries AS
        SELECT number, split, ads,
            row_number() OVER (PARTITION BY split ORDER BY number) - 1 AS query_id
        FROM (SELECT number, coalesce({split}, {TRAIN})::TINYINT AS split, coalesce(ads, 0) AS ads
              FROM queries LEFT JOIN family_splits USING (family)
              LEFT JOIN (SELECT {by}, count(*) AS ads FROM counted GROUP BY {by})
                  ON query = number)
        WHERE ads >= {max(fewest_ads, 1):d} OR {without}"""
    run(connection, "splitting queries", kept_queries)
    on = "number = query AND split = period" if all_periods else "number = query"
    kept_clicks = f"""CREATE OR REPLACE VIEW kept_clicks AS
        SELECT split, query_id, query, ad, period, weight FROM counted JOIN kept_queries ON {on}"""
    connection.execute(kept_clicks)
    clicked = dict(
        connection.sql("SELECT split, sum((ads > 0)::INT) FROM kept_queries GROUP BY 1").fetchall()
    )
    for number, split in enumerate(SPLITS):
        if not clicked.get(number):
            raise DatasetError(f"the {split} split would have no queries: {ADVICE[split]}")
    few = f"fewer than {fewest_ads} ads that are kept" if fewest_ads > 1 else "no ad that is kept"
    return {
        "ads left out for too few queries": count(connection, _LEFT_OUT.format("ads")),
        f"queries left out, as they led to {few}": count(connection, _LEFT_OUT.format("queries")),
        "train queries kept without a click": count(
            connection, "SELECT count(*) FROM kept_queries WHERE ads = 0"
        ),
    }


def drop_reversed(connection: Connection) -> int:
    """Drop train clicks that reverse held-out ones; returns how many. Keep queries anew then."""
    create = f"""CREATE TABLE reversed AS
        WITH folded AS (
            SELECT query, ad, period, split,
                fold(queries.text) AS from_text, fold(ads.text) AS to_text
            FROM kept_clicks
            JOIN queries ON queries.number = query JOIN ads ON ads.number = ad)
        SELECT query, ad, period FROM folded AS train
        SEMI JOIN (SELECT to_text, from_text FROM folded WHERE split > {TRAIN}) AS held_out
            ON train.from_text = held_out.to_text AND train.to_text = held_out.from_text
        WHERE train.split = {TRAIN}"""
    run(connection, "looking for reversed clicks", create)
    connection.execute(
        "DELETE FROM counted WHERE (query, ad, period) IN (SELECT query, ad, period FROM reversed)"
    )
    return count(connection, "SELECT count(*) FROM reversed")


_LEFT_OUT = "SELECT count(*) FROM {0} ANTI JOIN kept_{0} USING (number)"


def _register_draws(connection: Connection, seed: int) -> None:
    """Give SQL ``draw``: a number in [0, 1) for each key, the same for the same key and seed."""
    draws = partial(uniforms, (seed, _KEY))
    add_function(connection, "draw", draws, "UBIGINT", "DOUBLE")


QUERIES_AT_ONCE = 1 << 20
"""Lists of ads are made for so many queries at once, as the engine cannot spill them."""


def write_ads(connection: Connection, writer: DatasetWriter, optional: Sequence[str]) -> None:
    """Write the ads, with these ``optional`` columns."""
    columns = "".join(f", {column_literal(name)}" for name in optional)
    rows = f"""SELECT ad_id, text{columns} FROM kept_ads
        JOIN (SELECT *, id AS source_id FROM ads) USING (number) ORDER BY ad_id"""
    writer.write("ads", stream(connection, rows, TEXTS_PER_BATCH))


def write_queries(connection: Connection, writer: DatasetWriter, optional: Sequence[str]) -> None:
    """Write each split's queries with their ads and ``optional`` columns."""
    written = """CREATE TABLE written AS
        SELECT split, query_id, ad_id, weight FROM kept_clicks
        JOIN kept_ads ON kept_ads.number = ad ORDER BY split, query_id, ad_id"""
    run(connection, "sorting clicks", written)
    columns = ["query_id", "text", "ad_ids", *optional]
    for number, split in enumerate(SPLITS):
        writer.write(f"queries/{split}", _with_ads(connection, number, columns))


def _with_ads(
    connection: Connection, split: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a split's queries, in the order of their ids."""
    num_queries = count(connection, f"SELECT count(*) FROM kept_queries WHERE split = {split}")
    for first in range(0, num_queries, QUERIES_AT_ONCE):
        some = f"split = {split} AND query_id BETWEEN {first} AND {first + QUERIES_AT_ONCE - 1}"
        low, high = connection.sql(
            f"SELECT min(number), max(number) FROM kept_queries WHERE {some}"
        ).fetchall()[0]
        # by their numbers, the engine skips all other texts, which it would read for each block
        rows = connection.sql(
            f"""SELECT query_id, text, id AS source_id FROM kept_queries
            JOIN (FROM queries WHERE number BETWEEN {low} AND {high}) USING (number)
            WHERE {some} ORDER BY query_id"""
        ).to_arrow_table(TEXTS_PER_BATCH)
        pairs = connection.sql(  # in the order in which they were written
            f"SELECT query_id, ad_id, weight FROM written WHERE {some}"
        ).fetchnumpy()
        lengths = np.bincount(pairs["query_id"] - first, minlength=len(rows))
        rows = rows.append_column("ad_ids", to_lists(pairs["ad_id"], lengths))
        rows = rows.append_column("weights", to_lists(pairs["weight"], lengths))
        yield from rows.select(columns).to_batches(ROWS_PER_BATCH)


def write_aliases(connection: Connection, side: Side, writer: DatasetWriter) -> None:
    """Write the names that have no row: with the id that was kept, if they were merged."""
    nodes = PLURAL[side]
    rows = f"{side}_rows"
    aliases = f"""CREATE TABLE {side}_aliases AS
        WITH lost AS (SELECT number, id FROM {nodes} ANTI JOIN kept_{nodes} USING (number))
        SELECT id AS name, NULL::VARCHAR AS of FROM lost
        UNION ALL
        SELECT merged.id, CASE WHEN lost.number IS NULL THEN firsts.id END
        FROM {side}_same_text JOIN {rows} AS merged USING (place)
        JOIN {rows} AS firsts ON firsts.place = first LEFT JOIN lost ON lost.number = first"""
    run(connection, f"looking for names without {nodes}", aliases)
    write_filled(connection, writer, f"aliases/{side}", f"FROM {side}_aliases")


def write_filters(
    connection: Connection, writer: DatasetWriter, *, given: bool, own_text: bool
) -> dict[str, int]:
    """Write the pairs of held-out queries and kept ads; counts these, and given ones of no use."""
    pairs = ["SELECT query, ad FROM filters"] * given + [_OWN_TEXT] * own_text
    filter_pairs = f"""CREATE TABLE filter_pairs AS
        SELECT DISTINCT split, query_id, ad_id
        FROM ({" UNION ALL ".join(pairs)}) AS pairs
        JOIN kept_queries ON kept_queries.number = query
        JOIN kept_ads ON kept_ads.number = ad WHERE split > {TRAIN}"""
    run(connection, "finding filter pairs", filter_pairs)
    counts = {}
    if given:
        used = f"""query IN (SELECT number FROM kept_queries WHERE split > {TRAIN})
            AND ad IN (SELECT number FROM kept_ads)"""
        # rows of unknown names have been told already
        unused = f"SELECT count(*) FROM filters WHERE query + ad IS NOT NULL AND NOT ({used})"
        what = "pairs of train queries, or of queries and ads that the import left out"
        counts[what] = count(connection, unused)
    return counts | write_splits(connection, writer, "filters", "FROM filter_pairs")


def write_judgements(connection: Connection, writer: DatasetWriter) -> dict[str, int]:
    """Write the judgements of kept queries and ads, the mean of a source's; returns counts.

    A query that is in several splits, or whose other spellings are, is judged in the last only:
    nothing is learnt from judgements of what is held out.
    """
    grades = """CREATE TABLE grades AS
        WITH last AS (
            SELECT family, max(split) AS split FROM kept_queries JOIN queries USING (number)
            GROUP BY family)
        SELECT split, query_id, ad_id, source, avg(grade ORDER BY place) AS grade,
            count(*) AS times, min(grade) < max(grade) AS differ
        FROM judged JOIN kept_queries ON kept_queries.number = query
        JOIN queries USING (number) JOIN last USING (family, split)
        JOIN kept_ads ON kept_ads.number = ad
        GROUP BY split, query_id, ad_id, source"""
    run(connection, "averaging judgements", grades)
    used = "SELECT coalesce(sum(times), 0) FROM grades"
    left_out = f"SELECT count(*) - ({used}) FROM judged WHERE query + ad IS NOT NULL"
    return write_splits(connection, writer, JUDGED_FOLDER, "FROM grades") | {
        "contradict each other, and their mean counts": count(
            connection, "SELECT count(*) FROM grades WHERE differ"
        ),
        "rows of queries and ads that the import left out": count(connection, left_out),
    }


def write_splits(
    connection: Connection, writer: DatasetWriter, folder: str, rows: str
) -> dict[str, int]:
    """Write a table ``folder``/split of each split that has ``rows``; returns their row counts.

    ``rows`` is SQL that selects ``split`` and the tables' columns, by which they are sorted.
    """
    written = {}
    for number, split in enumerate(SPLITS):
        of_split = f"FROM ({rows}) WHERE split = {number}"
        written[f"{folder}/{split}"] = write_filled(
            connection, writer, f"{folder}/{split}", of_split
        )
    return written


def write_filled(connection: Connection, writer: DatasetWriter, table: str, rows: str) -> int:
    """Write the rows that SQL selects, sorted; without any there is no table. Returns how many."""
    if not count(connection, f"SELECT count(*) FROM ({rows})"):
        return 0
    return writer.write(table, stream(connection, f"FROM ({rows}) ORDER BY ALL"))


_OWN_TEXT = f"""SELECT held_out.number AS query, ads.number AS ad
    FROM (SELECT queries.number, fold(text) AS folded FROM queries JOIN kept_queries USING (number)
          WHERE split > {TRAIN}) AS held_out
    JOIN ads ON fold(ads.text) = held_out.folded"""
